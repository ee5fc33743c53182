"""Ways to get an hms-mcp that is not here yet, and how the wait for one is shown."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

CRATE_VERSION = "0.6.3"
CRATE = (
    *("holographic-memory", "--version", CRATE_VERSION),
    *("--features", "mcp,security", "--bin", "hms-mcp", "--locked"),
)
RUST_MINIMUM = (1, 89)
# Whatever the user's own cargo settings are, show `123/245` in a form that can be parsed.
VISIBLE = {
    "CARGO_TERM_PROGRESS_WHEN": "always",
    "CARGO_TERM_PROGRESS_WIDTH": "80",
    "CARGO_TERM_COLOR": "never",
    "CARGO_TERM_QUIET": "false",
    "CARGO_TERM_VERBOSE": "false",
}
TICK_SECONDS = 0.25
CARGO_VERSION_SECONDS = 30  # the first call of a toolchain may be slow
TAIL_BYTES = 4096  # holds several of cargo's redrawn progress lines, or the end of its complaint

# The audit event is the documented way to learn where the launcher puts its partial file.
LAUNCH = """
import sys
def tell(event, args):
    if event == "tempfile.mkstemp":
        sys.stderr.write(f"partial {args[0]}\\n")
sys.addaudithook(tell)
from holographic_memory_mcp import ensure_binary
sys.stdout.write(ensure_binary())
"""
# -P: a file in the working directory must not be able to pose as the launcher.
LAUNCHER = (sys.executable, "-P", "-c", LAUNCH)


Tick = Callable[[str], None]


class Failed(Exception):
    """One way to an engine led nowhere; the text says why."""


class Progress(Protocol):
    """Shows one step of an installation at a time: start, any number of updates, finish."""

    def start(self, what: str) -> None:
        """Begin a step; `what` says what is being done."""

    def update(self, far: str, share: float | None = None) -> None:
        """Say how far the step is, several times a second; `share` is 0..1 where it is known."""

    def finish(self, outcome: str) -> None:
        """End the step; `outcome` says where its result is, or why there is none."""


class LineProgress:
    """Progress as plain lines, for logs and pipes: at the start, now and then, at the end.

    Arguments: where to write, the seconds between two lines of a step, and a monotonic clock.
    """

    def __init__(
        self, stream: TextIO, every_seconds: float = 10, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._every_seconds = every_seconds
        self._clock = clock
        self._what = ""
        self._began = self._said = clock()

    def start(self, what: str) -> None:
        self._what = what
        self._began = self._clock()
        self._say(what)

    def update(self, far: str, share: float | None = None) -> None:
        if self._clock() - self._said >= self._every_seconds:
            self._say(f"{self._what}: {far} ({self._clock() - self._began:.0f} s)")

    def finish(self, outcome: str) -> None:
        self._say(f"{outcome} ({self._clock() - self._began:.0f} s)")

    def _say(self, line: str) -> None:
        self._said = self._clock()
        self._stream.write(f"hms-memory-gateway: {line}\n")
        self._stream.flush()


class TerminalProgress:
    """Progress as one live line with a bar and the elapsed time, on a rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichProgress | None = None

    def start(self, what: str) -> None:
        self._console.print(what, markup=False, highlight=False)
        one_line = Column(no_wrap=True, overflow="ellipsis")
        far = TextColumn("{task.description}", markup=False, table_column=one_line)
        columns = (SpinnerColumn(), TimeElapsedColumn(), BarColumn(bar_width=20), far)
        self._live = RichProgress(*columns, console=self._console, transient=True)
        self._live.add_task("starting", total=None)
        self._live.start()

    def update(self, far: str, share: float | None = None) -> None:
        if self._live is not None:
            total = None if share is None else 1.0
            task = self._live.task_ids[0]
            self._live.update(task, description=far, completed=share, total=total)

    def finish(self, outcome: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._console.print(outcome, markup=False, highlight=False)


def progress_for(stream: TextIO) -> Progress:
    """Return the progress that suits a stream: live on a terminal, plain lines elsewhere."""
    console = Console(file=stream)
    # A dumb terminal cannot redraw a line, so a live display would be a silent wait there.
    if stream.isatty() and not console.is_dumb_terminal:
        return TerminalProgress(console)
    return LineProgress(stream)


@contextmanager
def step(progress: Progress, what: str) -> Generator[None]:
    """Start a step, and end it with the reason if the body fails; the body tells a success."""
    progress.start(what)
    try:
        yield
    except BaseException as error:
        progress.finish(f"gave up: {str(error) or type(error).__name__}")
        raise


class _Ended(NamedTuple):
    code: int
    output: str
    tail: str


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
        return log.read().decode(errors="replace")


def _follow(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, seconds: float, tick: Tick
) -> _Ended:
    """Run a child in a folder and pass the end of its stderr to `tick` while it runs.

    Files instead of pipes: neither a full pipe nor a grandchild that keeps one open can block us.
    """
    out, err = folder / "stdout", folder / "stderr"
    with (
        out.open("wb") as stdout,
        err.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603 - the command is ours, and no shell reads it
            command,
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        ) as child,
    ):
        try:
            _watch(child, seconds, lambda: tick(_tail(err)))
        finally:
            child.kill()
    return _Ended(child.returncode, _tail(out).strip(), _tail(err))


def _watch(child: subprocess.Popen[bytes], seconds: float, tick: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            child.wait(TICK_SECONDS)
            return
        tick()
    raise Failed(f"not done after {seconds:g} s")


def _last_lines(tail: str, count: int) -> str:
    pieces = [piece.strip() for piece in re.split(r"[\r\n]+", tail)]
    telling = [p for p in pieces if p and not p.startswith(("Building [", "partial "))]
    return "\n".join(telling[-count:]) or "(no output)"


def download(environ: Mapping[str, str], folder: Path, progress: Progress, seconds: float) -> Path:
    """Have the PyPI launcher download hms-mcp, or name the one that it has already.

    Arguments: the launcher's environment, a scratch folder, where to show bytes so far,
    and the longest time to allow. Returns the path that the launcher names. Raises `Failed`.
    """
    try:
        ended = _follow(
            LAUNCHER, environ, folder, seconds, lambda tail: progress.update(_bytes_so_far(tail))
        )
    finally:
        drop_partial(folder)
    if ended.code != 0 or not ended.output:
        raise Failed(_last_lines(ended.tail, 1))
    return Path(ended.output)


def drop_partial(folder: Path) -> None:
    """Remove the partial file of the launcher that worked in a folder; a killed one leaves it."""
    with suppress(OSError):
        if partial := _partial(_tail(folder / "stderr")):
            partial.unlink(missing_ok=True)


def _partial(tail: str) -> Path | None:
    told = re.search(r"^partial (.*\.download-[^/\n]*)$", tail, re.MULTILINE)
    return Path(told[1]) if told else None


def _bytes_so_far(tail: str) -> str:
    partial = _partial(tail)
    size = partial.stat().st_size if partial and partial.exists() else 0
    return f"{size / 1e6:.1f} MB so far" if size else "waiting for the first byte"


def downloaded(environ: Mapping[str, str], seconds: float) -> Path | None:
    """Name the binary that the PyPI launcher has at hand, without any network.

    The launcher refuses an address that is not HTTPS before it connects, so given such an address
    it answers only with what HMS_MCP_BINARY names or what its own cache holds intact.
    """
    offline = {**environ, "HMS_MCP_RELEASE_BASE": "offline:"}
    try:
        ended = subprocess.run(  # noqa: S603 - the command is ours, and no shell reads it
            LAUNCHER, env=offline, capture_output=True, text=True, timeout=seconds, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(ended.stdout.strip())


def build(
    environ: Mapping[str, str], root: Path, target: Path, progress: Progress, seconds: float
) -> Path:
    """Build hms-mcp with cargo.

    Arguments: cargo's environment, the installation root, the folder of half-done work (an
    interrupted build resumes from it), where to show crates compiled, and the longest time to
    allow. Returns the path of the new binary under `root`. Raises `Failed`.
    """
    cargo = _cargo(environ, root, lambda _: progress.update("asking cargo for its version"))
    command = (cargo, "install", *CRATE, "--root", str(root), "--target-dir", str(target))
    told = {**environ, **VISIBLE}
    ended = _follow(
        command, told, root, seconds, lambda tail: progress.update(*_crates_so_far(tail))
    )
    if ended.code != 0:
        raise Failed(f"cargo install failed:\n{_last_lines(ended.tail, 6)}")
    return root / "bin" / "hms-mcp"


def _cargo(environ: Mapping[str, str], folder: Path, tick: Tick) -> str:
    """Return the path of a cargo that is new enough, or raise `Failed` with what to do."""
    minimum = ".".join(map(str, RUST_MINIMUM))
    cargo = shutil.which("cargo", path=environ.get("PATH", ""))
    if cargo is None:
        raise Failed(f"no cargo on PATH; install Rust {minimum} or newer")
    ended = _follow([cargo, "--version"], environ, folder, CARGO_VERSION_SECONDS, tick)
    found = re.match(r"cargo (\d+)\.(\d+)", ended.output)
    if ended.code != 0 or found is None:
        raise Failed(f"`cargo --version` failed: {_last_lines(ended.tail, 1)}")
    if (int(found[1]), int(found[2])) < RUST_MINIMUM:
        raise Failed(f"{ended.output} is too old; update to Rust {minimum} (`rustup update`)")
    return cargo


def _crates_so_far(tail: str) -> tuple[str, float | None]:
    bars = re.findall(r"\] +(\d+)/(\d+)(?=[:\s])(?:: *([^\r\n]*))?", tail)
    if not bars:
        return _last_lines(tail, 1), None
    done, total, names = bars[-1]
    text = f"{done} of {total} crates compiled, now {names.strip()}"
    return text, int(done) / max(1, int(total))
