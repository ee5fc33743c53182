"""Finding and installing the engine, with the real launcher and stand-ins for cargo alone."""

import hashlib
import importlib
import json
import logging
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hms_memory_gateway.engine import (
    Bounds,
    Engine,
    EngineMissing,
    default_cache,
    ensure,
    find,
    progress_for,
)
from hms_memory_gateway.engine_install import LineProgress, TerminalProgress

CRATES = "3 of 245 crates"
BOUNDS = Bounds(probe_seconds=10, download_seconds=10, build_seconds=10)
INSTALL = """
import os, sys
from pathlib import Path
from hms_memory_gateway.engine import ensure
from hms_memory_gateway.engine_install import LineProgress
print(ensure(os.environ, Path(sys.argv[1]), LineProgress(sys.stdout, every_seconds=0)).path)
"""
INSTALL_LIVE = """
import os, sys
from pathlib import Path
from hms_memory_gateway.engine import ensure, progress_for
ensure(os.environ, Path(sys.argv[1]), progress_for(sys.stderr))
"""
# What a stand-in for cargo can do; `version` and `body` differ from test to test.
CARGO = """#!{python}
import os, shutil, sys
from pathlib import Path
if sys.argv[1:] == ["--version"]:
    {version}
    sys.exit()
root = Path(sys.argv[sys.argv.index("--root") + 1])
target = Path(sys.argv[sys.argv.index("--target-dir") + 1])
(root / "bin").mkdir()
target.mkdir(exist_ok=True)
with open({builds!r}, "a") as builds:
    builds.write(" ".join(sys.argv[1:]) + "\\n")
def show():
    assert os.environ["CARGO_TERM_PROGRESS_WHEN"] == "always"
    sys.stderr.write("   Compiling syn v3.0.9\\n    Building [=>    ] 3/245: syn, serde    \\r")
    sys.stderr.flush()
def pause():
    with open({gate!r}, "rb", buffering=0) as gate:
        gate.read(1)
def put(size=-1):
    binary = root / "bin" / "hms-mcp"
    binary.write_bytes(Path({engine!r}).read_bytes()[:size] if size > 0 else b"")
    if size < 0:
        shutil.copy({engine!r}, binary)
    binary.chmod(0o755)
{body}
"""
CURRENT = 'print("cargo 1.95.0 (stand-in)")'


class Seen:
    """A progress that keeps what it is told and can act on it."""

    def __init__(self, on: str = "", act: Callable[[], None] = lambda: None) -> None:
        self.told: list[str] = []
        self._on = on
        self._act = act

    def start(self, what: str) -> None:
        self.update(what)

    def update(self, far: str, share: float | None = None) -> None:
        self.told.append(far)
        if self._on and self._on in far:
            self._act()

    def finish(self, outcome: str) -> None:
        self.told.append(outcome)

    def __contains__(self, part: str) -> bool:
        return any(part in each for each in self.told)


class Place:
    """A machine of one test: its PATH, its caches, its cargo, and a gate that cargo waits at."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self.engine = engine
        self.path = root / "path"
        self.path.mkdir()
        self.cache = root / "cache"
        self.launcher_cache = root / "launcher"
        self.builds_log = root / "builds"
        self.gate = root / "gate"
        os.mkfifo(self.gate)
        # Read and write: nobody blocks on opening, and closing it frees whoever still waits.
        self._held = os.open(self.gate, os.O_RDWR)
        self.environ = {
            "PATH": str(self.path),
            "HOME": str(root),
            "HMS_MCP_CACHE_DIR": str(self.launcher_cache),
            "HMS_MCP_RELEASE_BASE": "nowhere:",
        }

    def script(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def cargo(self, body: str, version: str = CURRENT) -> None:
        given = {"builds": str(self.builds_log), "gate": str(self.gate)}
        binary = str(self.engine.path)
        self.script(
            "cargo",
            CARGO.format(python=sys.executable, version=version, body=body, engine=binary, **given),
        )

    def open_gate(self) -> None:
        os.write(self._held, b"go")

    def close(self) -> None:
        os.close(self._held)

    @property
    def builds(self) -> list[str]:
        return self.builds_log.read_text().splitlines() if self.builds_log.exists() else []

    def find(self) -> Engine | None:
        return find(self.environ, self.cache, bounds=BOUNDS)

    def ensure(self, progress: Seen | None = None, bounds: Bounds = BOUNDS) -> Engine:
        return ensure(self.environ, self.cache, progress or Seen(), bounds=bounds)

    def refusal(self, bounds: Bounds = BOUNDS) -> str:
        with pytest.raises(EngineMissing) as caught:
            self.ensure(bounds=bounds)
        return str(caught.value)

    @contextmanager
    def installer(self) -> Generator["Installer"]:
        command = [sys.executable, "-c", INSTALL, str(self.cache)]
        with subprocess.Popen(
            command, env=self.environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                yield Installer(process)
            finally:
                process.kill()

    def leftovers(self) -> set[str]:
        """Names in the cache that are neither the lock nor the folder of a finished engine."""
        names = {path.name for path in (self.cache / "engine").iterdir()}
        return {name for name in names if name != ".lock" and not name.startswith("0.6.3-")}


class Installer:
    """Another process that runs `ensure` and says what it does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def reach(self, part: str) -> None:
        """Read on until a line holds `part`."""
        assert self.process.stdout is not None
        assert any(part in line for line in self.process.stdout), f"it never said {part!r}"

    def path(self) -> Path:
        """Wait for the end, and return the path that it printed last."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        assert self.process.wait(10) == 0
        return Path(lines[-1])


@pytest.fixture
def place(tmp_path: Path, engine: Engine) -> Iterator[Place]:
    place = Place(tmp_path, engine)
    yield place
    place.close()


class Release(BaseHTTPRequestHandler):
    """Serves the engine in two halves, and waits between them until it is told to go on."""

    body = b""
    half_sent = threading.Event()
    go_on = threading.Event()
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        half = len(self.body) // 2
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body[:half])
        self.half_sent.set()
        self.go_on.wait()
        self.wfile.write(self.body[half:])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
        pass


@pytest.fixture
def release(place: Place, tmp_path: Path) -> Iterator[type[Release]]:
    """A loopback release server that the launcher of `place` trusts."""

    class Served(Release):
        body = place.engine.path.read_bytes()
        half_sent = threading.Event()
        go_on = threading.Event()

    targets = importlib.import_module("holographic_memory_mcp").TARGETS.values()
    digest = hashlib.sha256(Served.body).hexdigest()
    table = tmp_path / "checksums.json"
    table.write_text(json.dumps({"assets": dict.fromkeys(targets, digest)}))
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients get killed
        place.environ["HMS_MCP_RELEASE_BASE"] = f"http://127.0.0.1:{server.server_port}"
        place.environ["HMS_MCP_CHECKSUMS"] = str(table)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield Served
        Served.go_on.set()
        server.shutdown()
        thread.join()


# Where an engine is looked for, and in which order.


def test_hms_mcp_bin_comes_before_path(place: Place) -> None:
    (place.path / "hms-mcp").symlink_to(place.engine.path)
    named = place.cache.parent / "mine"
    named.symlink_to(place.engine.path)
    place.environ["HMS_MCP_BIN"] = str(named)
    assert place.find() == Engine(named, "HMS_MCP_BIN names it", place.engine.version)


@pytest.mark.parametrize("name", ["/nonexistent/hms-mcp", "/", "/dev/null"])
def test_a_bad_hms_mcp_bin_is_an_error_even_if_path_has_an_engine(place: Place, name: str) -> None:
    (place.path / "hms-mcp").symlink_to(place.engine.path)
    place.environ["HMS_MCP_BIN"] = name
    with pytest.raises(EngineMissing) as caught:
        place.find()
    assert "HMS_MCP_BIN" in str(caught.value)
    assert name in str(caught.value)
    assert "HMS_MCP_BIN" in place.refusal()


def test_an_empty_hms_mcp_bin_counts_as_unset(place: Place) -> None:
    place.environ["HMS_MCP_BIN"] = ""
    assert place.find() is None


def test_path_comes_before_the_cache(place: Place) -> None:
    place.cargo("put()")
    place.ensure()
    (place.path / "hms-mcp").symlink_to(place.engine.path)
    found = place.find()
    assert found == Engine(place.path / "hms-mcp", "it is on PATH", place.engine.version)


def test_the_cache_comes_before_the_launcher(place: Place) -> None:
    place.cargo("put()")
    built = place.ensure()
    place.environ["HMS_MCP_BINARY"] = str(place.engine.path)
    found = place.find()
    assert found is not None
    assert found.path == built.path


def test_find_takes_what_the_launcher_is_told_to_use(place: Place) -> None:
    place.environ["HMS_MCP_BINARY"] = str(place.engine.path)
    found = place.find()
    assert found is not None
    assert (found.path, found.version) == (place.engine.path, place.engine.version)


def test_find_returns_nothing_and_installs_nothing_on_a_bare_machine(place: Place) -> None:
    place.cargo("put()")
    assert place.find() is None
    assert place.builds == []


# A candidate that does not answer `--version` as an hms-mcp.
@pytest.mark.parametrize(
    ("body", "seconds", "complaint"),
    [
        ("echo GLIBC is too old >&2; exit 3", 60, "exit status 3: GLIBC is too old"),
        ("exit 3", 60, "exit status 3"),
        ("echo 1.2.3", 60, "does not print the version"),
        ("read line < gate", 1, "no answer in 1 s"),
    ],
)
def test_a_broken_engine_on_path_is_passed_over_and_its_fault_told(
    place: Place, caplog: pytest.LogCaptureFixture, body: str, seconds: float, complaint: str
) -> None:
    broken = place.script("hms-mcp", f"#!/bin/sh\n{body.replace('gate', str(place.gate))}\n")
    with caplog.at_level(logging.WARNING):
        refusal = place.refusal(Bounds(probe_seconds=seconds))
    assert complaint in refusal
    assert str(broken) in caplog.text


def test_a_working_engine_further_on_in_path_is_found(place: Place) -> None:
    place.script("hms-mcp", "#!/bin/sh\nexit 1\n")
    place.environ["PATH"] += f"{os.pathsep}{place.engine.path.parent}"
    found = place.find()
    assert found is not None
    assert found.path == place.engine.path


# Installation by the launcher.


def test_the_launcher_downloads_once_and_shows_bytes(place: Place, release: type[Release]) -> None:
    progress = Seen("MB so far", release.go_on.set)
    engine = place.ensure(progress)
    assert "MB so far" in progress
    assert f"is at {engine.path}" in progress
    assert engine.path.is_relative_to(place.launcher_cache)
    found = place.find()
    assert found is not None
    assert place.ensure().path == found.path == engine.path
    assert release.requests == 1


def test_a_damaged_download_is_refused_and_cargo_takes_over(
    place: Place, release: type[Release]
) -> None:
    release.body = release.body[:-1] + b"?"
    release.go_on.set()
    place.cargo("put()")
    progress = Seen()
    engine = place.ensure(progress)
    assert engine.path.is_relative_to(place.cache)
    assert "checksum mismatch" in progress


def test_a_network_that_swallows_packets_ends_in_a_bounded_time(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place.environ["HMS_MCP_RELEASE_BASE"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        refusal = place.refusal(Bounds(download_seconds=0.6))
    assert "not done after 0.6 s" in refusal
    assert list(place.launcher_cache.rglob(".download-*")) == []


def test_a_useless_hms_mcp_binary_is_told_and_cargo_takes_over(place: Place) -> None:
    place.environ["HMS_MCP_BINARY"] = "/nonexistent/engine"
    place.cargo("put()")
    progress = Seen()
    assert place.ensure(progress).path.is_relative_to(place.cache)
    assert "/nonexistent/engine does not run" in progress


# Installation by cargo.


def test_cargo_builds_into_the_cache_and_shows_crates(place: Place) -> None:
    place.cargo("show(); pause(); put()")
    progress = Seen(CRATES, place.open_gate)
    engine = place.ensure(progress)
    assert engine.version == place.engine.version
    assert CRATES in progress
    assert f"is at {engine.path}" in progress
    assert place.leftovers() == set()
    [arguments] = place.builds
    assert "holographic-memory --version 0.6.3 --features mcp,security --bin hms-mcp" in arguments


def test_the_next_start_finds_what_cargo_built(place: Place) -> None:
    place.cargo("put()")
    built = place.ensure()
    assert place.ensure().path == built.path
    assert len(place.builds) == 1


def test_the_folders_of_the_cache_are_for_their_owner_alone(place: Place) -> None:
    place.cargo("put()")
    engine = place.ensure()
    for folder in (place.cache, place.cache / "engine", engine.path.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


# Ways in which cargo fails: what its stand-in does, its version line, what the error must tell.
@pytest.mark.parametrize(
    ("body", "version", "complaint"),
    [
        ("sys.exit('error: linker `cc` not found')", CURRENT, "linker `cc` not found"),
        ("put(4096)", CURRENT, "does not run"),
        ("pass", CURRENT, "No such file"),
        ("pause()", CURRENT, "not done after 0.6 s"),
        ("put()", "print('cargo 1.88.0 (2025)')", "1.88.0 (2025) is too old; update to Rust 1.89"),
        ("put()", "sys.exit('error: no default toolchain')", "no default toolchain"),
    ],
)
def test_a_failure_of_cargo_is_told_and_leaves_no_engine(
    place: Place, body: str, version: str, complaint: str
) -> None:
    place.cargo(body, version)
    seconds = 0.6 if "not done" in complaint else 10
    assert complaint in place.refusal(Bounds(build_seconds=seconds))
    assert place.find() is None
    assert place.leftovers() <= {".target"}


def test_when_nothing_works_one_error_names_every_way_out(place: Place) -> None:
    refusal = place.refusal()
    for way in ("HMS_MCP_BIN ", "PATH", "holographic-memory-mcp", "HMS_MCP_BINARY", "Rust 1.89"):
        assert way in refusal
    assert "cargo install holographic-memory --version 0.6.3" in refusal
    # Why the launcher failed, and why cargo did.
    assert "download failed" in refusal
    assert "no cargo on PATH" in refusal


def test_a_cache_that_cannot_be_written_is_named_in_the_error(place: Place) -> None:
    place.cache.write_text("a file where the folder should be")
    assert "cache folder" in place.refusal()


# Several installers at once.


def test_two_processes_build_once_and_both_get_the_engine(place: Place) -> None:
    place.cargo("show(); pause(); put()")
    with place.installer() as first:
        first.reach(CRATES)
        with place.installer() as second:
            second.reach("still at work")
            place.open_gate()
            paths = {first.path(), second.path()}
    found = place.find()
    assert found is not None
    assert paths == {found.path}
    assert len(place.builds) == 1


def test_two_threads_build_once_and_both_get_the_engine(place: Place) -> None:
    place.cargo("show(); pause(); put()")
    building = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(place.ensure, Seen(CRATES, building.set))
        assert building.wait(60)
        waiter = Seen("still at work", place.open_gate)
        second = threads.submit(place.ensure, waiter)
        assert first.result(10).path == second.result(10).path
    assert "waiting for another process" in waiter
    assert len(place.builds) == 1


def test_waiting_for_another_installation_is_bounded(place: Place) -> None:
    place.cargo("show(); pause(); put()")
    building = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(place.ensure, Seen(CRATES, building.set))
        assert building.wait(60)
        refusal = place.refusal(Bounds(download_seconds=0.1, build_seconds=0.1))
        place.open_gate()
        assert first.result(10).version == place.engine.version
    assert "another installation is not done after 0.2 s" in refusal


# Killed installers. The stand-in has put nothing, half a binary or a whole one when it happens.
@pytest.mark.parametrize("put", ["pass", "put(4_000_000)", "put()"])
def test_an_installation_that_is_killed_is_never_taken_for_a_finished_one(
    place: Place, put: str
) -> None:
    place.cargo(f"{put}; show(); pause()")
    with place.installer() as installer:
        installer.reach(CRATES)
        installer.process.kill()
    assert place.find() is None
    place.cargo("assert target.exists(); put()")
    engine = place.ensure()
    assert place.find() == Engine(
        engine.path, "this gateway built it with cargo earlier", engine.version
    )
    assert place.leftovers() == set()


def test_a_download_that_is_killed_with_its_launcher_leaves_nothing_behind(
    place: Place, release: type[Release]
) -> None:
    with place.installer() as installer:
        installer.reach("MB so far")
        os.killpg(installer.process.pid, signal.SIGKILL)
    assert len(list(place.launcher_cache.rglob(".download-*"))) == 1
    assert place.find() is None
    release.go_on.set()
    place.ensure()
    assert release.requests == 2
    assert place.leftovers() == set()
    assert list(place.launcher_cache.rglob(".download-*")) == []


# How a wait is shown.


def test_plain_progress_says_start_now_and_then_and_end() -> None:
    now = 100.0
    stream = StringIO()
    progress = LineProgress(stream, every_seconds=10, clock=lambda: now)
    progress.start("building")
    for now in range(101, 126):
        progress.update(f"{now} of 245 crates")
    progress.finish("it is at /somewhere")
    assert stream.getvalue().splitlines() == [
        "hms-memory-gateway: building",
        "hms-memory-gateway: building: 110 of 245 crates (10 s)",
        "hms-memory-gateway: building: 120 of 245 crates (20 s)",
        "hms-memory-gateway: it is at /somewhere (25 s)",
    ]


def test_terminal_progress_shows_text_as_it_is_and_the_outcome() -> None:
    stream = StringIO()
    console = Console(file=stream, force_terminal=True, width=90, _environ={"TERM": "xterm"})
    progress = TerminalProgress(console)
    progress.start("building [bold]")
    progress.update("3 of 245 [crates]", 3 / 245)
    progress.finish("it is at [here]")
    for text in ("building [bold]", "0:00:00", "3 of 245 [crates]", "it is at [here]"):
        assert text in stream.getvalue()


def test_a_stream_that_is_no_terminal_gets_plain_lines(place: Place) -> None:
    stream = StringIO()
    place.cargo("put()")
    engine = ensure(place.environ, place.cache, progress_for(stream), bounds=BOUNDS)
    assert "\x1b" not in stream.getvalue()
    assert f"is at {engine.path}" in stream.getvalue()


@pytest.mark.parametrize(("term", "is_live"), [("xterm", True), ("dumb", False)])
def test_a_terminal_gets_a_live_display_unless_it_is_dumb(
    place: Place, term: str, is_live: bool
) -> None:
    place.cargo("show(); pause(); put()")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", INSTALL_LIVE, str(place.cache)],
        env={**place.environ, "TERM": term, "COLUMNS": "100"},
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = _read_terminal(ours, CRATES if is_live else "building", place.open_gate)
        assert process.wait(10) == 0
    assert ("\x1b[2K" in shown) is is_live
    assert "is at " in shown


def _read_terminal(handle: int, part: str, act: Callable[[], None]) -> str:
    """Read until the other end closes; act once when `part` has been shown."""
    shown, has_acted = "", False
    with open(handle, "rb", buffering=0) as terminal:
        while True:
            try:
                piece = terminal.read(4096)
            except OSError:  # how Linux reports the end of a pseudo-terminal
                return shown
            if not piece:
                return shown
            shown += piece.decode(errors="replace")
            if part in shown and not has_acted:
                has_acted = True
                act()


def test_the_default_cache_is_a_folder_of_this_program() -> None:
    assert default_cache().name == "hms-memory-gateway"
