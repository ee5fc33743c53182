"""Find the engine binary hms-mcp, or install it, and say which one was taken and why."""

import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from hms_memory_gateway import engine_install as install
from hms_memory_gateway.durable import sync
from hms_memory_gateway.engine_install import Failed, Progress, progress_for, step

__all__ = ["Bounds", "Engine", "EngineMissing", "Progress", "default_cache", "ensure", "find"]
__all__ += ["progress_for"]

BINARY = "hms-mcp"
STAGING_PREFIX = ".install-"  # of all that an installer leaves behind when it is killed
TARGET = ".target"  # half-done work of cargo: kept until an installation succeeds
logger = logging.getLogger(__name__)


class EngineMissing(Exception):
    """There is no usable hms-mcp; the text names every way to get one."""


@dataclass(frozen=True)
class Engine:
    """An hms-mcp that has answered `--version`; `reason` says why this one was taken."""

    path: Path
    reason: str
    version: str


@dataclass(frozen=True)
class Bounds:
    """The longest that each wait may take, in seconds."""

    probe_seconds: float = 10
    download_seconds: float = 600
    build_seconds: float = 3600


BOUNDS = Bounds()


def default_cache() -> Path:
    """Return the folder where this user's caches for the gateway belong."""
    return user_cache_path("hms-memory-gateway")


def find(environ: Mapping[str, str], cache: Path, *, bounds: Bounds = BOUNDS) -> Engine | None:
    """Return the engine that is already on this machine, without installing or any network.

    Arguments: the environment to look in (`HMS_MCP_BIN`, `PATH` and the launcher's variables), the
    cache folder, and how long a candidate may take to answer. Returns None if there is none.
    Raises `EngineMissing` if `HMS_MCP_BIN` names something that does not work.
    """
    return _Search(environ, cache, bounds).present()


def ensure(
    environ: Mapping[str, str], cache: Path, progress: Progress, *, bounds: Bounds = BOUNDS
) -> Engine:
    """Return an engine: the one that `find` finds, else one that is installed now.

    Arguments: as for `find`; `environ` is also the environment of the launcher and of cargo, and
    `progress` shows every wait. Raises `EngineMissing`, naming every way out, if nothing worked.
    """
    search = _Search(environ, cache, bounds)
    if engine := search.present():
        return engine
    try:
        with _alone(search.home, progress, bounds):
            return search.cached() or _install(search, progress)
    except (Failed, OSError) as error:
        search.reasons["cache"] = str(error)
        raise EngineMissing(_ways_out(search.reasons)) from error


@dataclass(frozen=True)
class _Search:
    """One search for an engine; `reasons` keeps why each way led nowhere."""

    environ: Mapping[str, str]
    cache: Path
    bounds: Bounds
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.cache / "engine"

    @property
    def final(self) -> Path:
        # Home folders are shared between machines, so the name tells machines apart.
        machine = f"{platform.system()}-{platform.machine()}".lower()
        return self.home / f"{install.CRATE_VERSION}-{machine}" / BINARY

    def present(self) -> Engine | None:
        return self._named() or self._on_path() or self.cached() or self._launcher_has()

    def _named(self) -> Engine | None:
        name = self.environ.get("HMS_MCP_BIN")
        if not name:
            return None
        found = shutil.which(name, path=self.environ.get("PATH", ""))
        try:
            return self.probe(Path(found or name), "HMS_MCP_BIN names it")
        except Failed as error:
            raise EngineMissing(f"HMS_MCP_BIN is set but not usable: {error}") from error

    def _on_path(self) -> Engine | None:
        for folder in self.environ.get("PATH", "").split(os.pathsep):
            found = shutil.which(BINARY, path=folder)
            if found and (engine := self._usable("PATH", Path(found), "it is on PATH")):
                return engine
        return None

    def cached(self) -> Engine | None:
        if not self.final.exists():
            return None
        return self._usable("cache", self.final, "this gateway built it with cargo earlier")

    def _launcher_has(self) -> Engine | None:
        path = install.downloaded(self.environ, self.bounds.probe_seconds)
        if path is None:
            return None
        return self._usable("launcher", path, "the PyPI launcher had it already")

    def _usable(self, way: str, path: Path, reason: str) -> Engine | None:
        try:
            return self.probe(path, reason)
        except Failed as error:
            self.reasons[way] = str(error)
            logger.warning("passed over an engine: %s", error)
            return None

    def probe(self, path: Path, reason: str) -> Engine:
        """Run `--version` and return the engine, or raise `Failed`."""
        try:
            ended = subprocess.run(  # noqa: S603 - running the candidate is the test of it
                [path.absolute(), "--version"],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.bounds.probe_seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"{path} does not run: {_complaint(error)}") from error
        told = re.match(r"hms-mcp (\d+\.\d+\S*)", ended.stdout.decode(errors="replace"))
        if told is None:
            raise Failed(f"{path} does not print the version of an hms-mcp")
        return Engine(path.absolute(), reason, told[1])


def _complaint(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = error.stderr.decode(errors="replace").strip().splitlines()
        return f"exit status {error.returncode}{': ' if said else ''}{''.join(said[-1:])}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:g} s"
    return getattr(error, "strerror", None) or str(error)


def _private(*folders: Path) -> None:
    """Create folders of the cache for their owner alone, outermost first."""
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def _alone(home: Path, progress: Progress, bounds: Bounds) -> Generator[None]:
    """Hold the lock of the cache, so that one process or thread at a time installs."""
    _private(home.parent, home)
    lock = FileLock(home / ".lock", thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        _wait(lock, progress, bounds)
    try:
        yield
    finally:
        lock.release()


def _wait(lock: FileLock, progress: Progress, bounds: Bounds) -> None:
    def tick() -> bool:
        progress.update("it is still at work")
        return False

    seconds = bounds.download_seconds + bounds.build_seconds
    with step(progress, "waiting for another process that is installing hms-mcp"):
        try:
            lock.acquire(timeout=seconds, cancel_check=tick)
        except Timeout as error:
            raise Failed(f"another installation is not done after {seconds:g} s") from error
    progress.finish("the other process has ended")


def _install(search: _Search, progress: Progress) -> Engine:
    """Try each way to install; call it with the lock held."""
    _sweep(search.home)
    ways: dict[str, Callable[[_Search, Progress], Engine]] = {
        "launcher": _download,
        "cargo": _build,
    }
    for way, attempt in ways.items():
        try:
            engine = attempt(search, progress)
        except (Failed, OSError) as error:
            search.reasons[way] = str(error)
        else:
            shutil.rmtree(search.home / TARGET, ignore_errors=True)
            return engine
    raise EngineMissing(_ways_out(search.reasons))


def _sweep(home: Path) -> None:
    """Remove what installers left that died; with the lock held, none of it is in use."""
    for left in home.glob(f"{STAGING_PREFIX}*"):
        install.drop_partial(left)
        shutil.rmtree(left, ignore_errors=True)


def _download(search: _Search, progress: Progress) -> Engine:
    what = "downloading hms-mcp with the PyPI launcher holographic-memory-mcp"
    with step(progress, what), _staging(search.home) as scratch:
        seconds = search.bounds.download_seconds
        path = install.download(search.environ, Path(scratch), progress, seconds)
        engine = search.probe(path, "the PyPI launcher downloaded it")
    progress.finish(f"hms-mcp {engine.version} is at {engine.path}")
    return engine


def _build(search: _Search, progress: Progress) -> Engine:
    what = f"building hms-mcp {install.CRATE_VERSION} with cargo, some minutes"
    with step(progress, what), _staging(search.home) as root:
        seconds, target = search.bounds.build_seconds, search.home / TARGET
        built = install.build(search.environ, Path(root), target, progress, seconds)
        engine = _settle(search, built)
    progress.finish(f"hms-mcp {engine.version} is at {engine.path}")
    return engine


def _staging(home: Path) -> tempfile.TemporaryDirectory[str]:
    # An error while removing it must not undo an installation that has succeeded.
    return tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=home, ignore_cleanup_errors=True)


def _settle(search: _Search, built: Path) -> Engine:
    """Move a binary to its final name, as the last step, once it runs and is on the disk."""
    tried = search.probe(built, "this gateway built it with cargo")
    _private(search.final.parent)
    sync(built)
    built.replace(search.final)
    sync(search.final.parent)
    return Engine(search.final.absolute(), tried.reason, tried.version)


def _ways_out(reasons: Mapping[str, str]) -> str:
    rust = ".".join(map(str, install.RUST_MINIMUM))
    ways = {
        "HMS_MCP_BIN": "set HMS_MCP_BIN to the path of an hms-mcp",
        "PATH": "put an hms-mcp on PATH",
        "cache": "make the cache folder usable",
        "launcher": "let the PyPI launcher holographic-memory-mcp download it, or set its"
        " HMS_MCP_BINARY or HMS_MCP_RELEASE_BASE",
        "cargo": f"install Rust {rust} or newer, or run: cargo install {' '.join(install.CRATE)}",
    }
    lines = ["the engine hms-mcp is missing. Any one of these helps:"]
    for way, advice in ways.items():
        if way != "cache" or way in reasons:
            lines.append(f"- {advice}")
        if way in reasons:
            lines += [f"    now: {line}" for line in reasons[way].splitlines()]
    return "\n".join(lines)
