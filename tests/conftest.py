"""Fixtures: the real engine, gateways over it in this process, and real HTTP to them."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx2
import hypothesis
import pytest
import uvicorn

from hms_memory_gateway.application import create_app
from hms_memory_gateway.connection import Connect
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import Engine, EngineMissing, default_cache, ensure, progress_for
from hms_memory_gateway.folders import Folders
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.protocol import BoundedHead
from hms_memory_gateway.server import KEEP_ALIVE_SECONDS
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from hms_memory_tool.session import EngineSession, open_stdio
from hms_memory_tool.store import HmsStore

_START_SECONDS = 10.0

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "patient",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

# The clients under test obey the environment's proxies, which have no way to this machine.
os.environ["NO_PROXY"] = "localhost,127.0.0.1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long the fault suite is, and which one."""
    parser.addoption(
        "--compaction-runs",
        type=int,
        default=12,
        help="how often somebody is killed in a compaction",
    )
    parser.addoption("--fault-commands", type=int, default=400, help="commands under faults")
    parser.addoption("--move-stride", type=int, default=400, help="writes between two kills")
    parser.addoption("--fault-seed", type=int, default=None, help="repeat the faults of a seed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that tests have recorded (`record_property`)."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name}: {value}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Install the engine before there are workers, who could not show how far that is."""
    with suppress(EngineMissing):  # each test that needs it says so
        installed(config)


@pytest.fixture
def fault_seed(pytestconfig: pytest.Config) -> int:
    """What chance begins with: another one each time, unless `--fault-seed` repeats one."""
    seed: int = pytestconfig.getoption("fault_seed") or random.randrange(1 << 32)
    logging.getLogger(__name__).warning("--fault-seed %d", seed)  # shown if the test fails
    return seed


@pytest.fixture
def same_log() -> Iterator[None]:
    """Leave the log as it was."""
    named = [logging.getLogger(name) for name in ("", "hms_memory_gateway", "hms_memory_tool")]
    levels, handlers = [one.level for one in named], list(named[0].handlers)
    yield
    for one, level in zip(named, levels, strict=True):
        one.setLevel(level)
    named[0].handlers[:] = handlers


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the gateway runs on."""
    return "asyncio", {"use_uvloop": True}


def installed(config: pytest.Config) -> Engine:
    """The real hms-mcp, installed if this machine has none; that takes minutes and says so."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        return ensure(os.environ, default_cache(), progress_for(sys.stderr))


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    """The real hms-mcp."""
    return installed(pytestconfig)


def processes_with(*arguments: str) -> list[int]:
    """The processes that have all of these arguments."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked, or is not ours to see
            given = (one / "cmdline").read_text(errors="replace").split("\0")
            if set(arguments) <= set(given):
                found.append(int(one.name))
    return found


def engines_in(data_dir: Path) -> list[int]:
    """The engines of embedded stores: each runs in the folder of its own."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked, or is not ours to see
            if (one / "cwd").readlink().is_relative_to(data_dir):
                found.append(int(one.name))
    return found


def stop(pid: int) -> None:
    """Stop a process, and return when the last of its threads stands still."""
    os.kill(pid, signal.SIGSTOP)
    while any(
        "State:\tT" not in (thread / "status").read_text()
        for thread in Path(f"/proc/{pid}/task").iterdir()
    ):
        time.sleep(0)  # let it run to where it stops


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a fact about another process or thread, which cannot tell us."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


class Client:
    """Sends what an agent sends, for one namespace."""

    def __init__(self, http: httpx2.Client, namespace: str) -> None:
        self.http = http
        self.namespace = namespace

    def post(self, route: str, body: object) -> httpx2.Response:
        """Any route, any body."""
        content = json.dumps(body)  # in ASCII: half of a surrogate pair can be sent like that
        headers = {"X-Memory-Namespace": self.namespace, "Content-Type": "application/json"}
        return self.http.post(route, content=content, headers=headers)

    def command(self, command: str, **fields: object) -> tuple[bool, str]:
        """A memory command: whether it went well, and the text."""
        return self.execute({"command": command, **fields})

    def execute(self, command: object) -> tuple[bool, str]:
        """A memory command as a whole object."""
        answer = self.post("/memory/command", command)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body.keys() == {"content", "is_error"}
        return not body["is_error"], body["content"]

    def recall(self, query: str, k: int = 5) -> list[dict[str, Any]]:
        """The results of a recall."""
        answer = self.post("/memory/recall", {"query": query, "k": k})
        assert answer.status_code == 200, answer.text
        assert not answer.json()["is_error"], answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results


_namespaces = count()


class Gateway:
    """A gateway that serves."""

    def __init__(self, http: httpx2.Client, settings: Settings) -> None:
        self.http = http
        self.settings = settings

    def client(self, namespace: str | None = None) -> Client:
        """A client of a namespace; of a new one where none is named."""
        return Client(self.http, namespace or f"test-{next(_namespaces)}")


Serve = Callable[..., AbstractContextManager[Gateway]]


@contextmanager
def serving(
    settings: Settings,
    connect: Connect,
    folders: Folders | None = None,
    telemetry: Telemetry | None = None,
) -> Generator[Gateway]:
    """Serve an application on a free port of loopback, in a thread of its own."""
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings, connect, folders=folders, telemetry=telemetry),
            port=0,
            lifespan="on",
            log_config=None,
            access_log=False,
            http=BoundedHead,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        port = _port(server, thread)
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
        ) as http:
            yield Gateway(http, settings)
    finally:
        server.should_exit = True
        thread.join()


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    pause = threading.Event()
    for _ in range(int(_START_SECONDS / 0.01)):
        if server.started:
            port: int = server.servers[0].sockets[0].getsockname()[1]
            return port
        assert thread.is_alive(), "the gateway did not start"
        pause.wait(0.01)
    raise AssertionError("the gateway did not start in time")


@pytest.fixture(scope="session")
def serve(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Start a gateway over real engines: `with serve(max_connections=2) as gateway`."""

    def start(**options: Any) -> AbstractContextManager[Gateway]:
        folder = options.pop("data_dir", None) or tmp_path_factory.mktemp("data")
        tracing = options.pop("tracing", None)
        settings = Settings(data_dir=Path(folder), **options)
        metrics = Metrics(engine_version=engine.version, data_dir=settings.data_dir)
        telemetry = Telemetry(metrics, tracing)
        connect = embedded(engine.path, settings, os.environ, telemetry.calls, telemetry.compacted)
        return serving(settings, connect, Folders(settings.data_dir), telemetry)

    return start


@contextmanager
def shared_engine(
    engine: Engine,
    folder: Path,
    token: str,
    *arguments: str,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """An hms-mcp that serves many stores over HTTP: its address, and its process."""
    command = [
        str(engine.path),
        "--transport=http",
        f"--bind={host}:{port}",
        "--namespace-arg",
        f"--data-dir={folder}",
        *arguments,
    ]
    environ = {**os.environ, "HMS_MCP_TOKEN": token}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield line.rsplit(" ", 1)[-1].strip(), process
        finally:
            process.terminate()


@asynccontextmanager
async def stored(
    engine: Engine,
    folder: Path,
    namespace: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
) -> AsyncGenerator[tuple[HmsStore, EngineSession]]:
    """A store of a data folder through an engine alone, as another client has it."""
    async with open_stdio(
        str(engine.path),
        [f"--namespace={namespace}", f"--data-dir={folder}", *arguments],
        environ or {},
        open_seconds=30,
        call_seconds=30,
        on_stderr=print,
    ) as session:
        yield HmsStore(session, namespace), session


ReadStore = Callable[[Path, str], dict[str, str]]


@pytest.fixture(scope="session")
def read_store(engine: Engine) -> ReadStore:
    """Read the texts of a store that nobody has open: data folder and namespace to id and text."""

    def read(folder: Path, namespace: str) -> dict[str, str]:
        async def documents() -> dict[str, str]:
            async with stored(engine, folder, namespace, "--max-page=10000") as (store, _):
                page = await store.documents("", None, 10_000)
                return {document.key: document.text for document in page.items}

        return anyio.run(documents)

    return read


@pytest.fixture(scope="session")
def gateway(serve: Serve) -> Iterator[Gateway]:
    """A gateway with the default settings, shared by the tests that need no other."""
    with serve() as started:
        yield started


@pytest.fixture
def client(gateway: Gateway) -> Client:
    """A client of an empty namespace."""
    return gateway.client()


OpenStore = Callable[..., AbstractAsyncContextManager[tuple[HmsStore, EngineSession]]]


@pytest.fixture(scope="session")
def open_store(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> OpenStore:
    """Open a store with an engine of its own, without a gateway: store and session."""

    @asynccontextmanager
    async def opened(*arguments: str) -> AsyncGenerator[tuple[HmsStore, EngineSession]]:
        folder = tmp_path_factory.mktemp("store")
        async with stored(engine, folder, "n", *arguments) as opened:
            yield opened

    return opened
