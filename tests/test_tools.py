"""The tool classes: options, life cycle, threads and loops, and what a thin client imports."""

import gc
import logging
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import BetaMemoryTool20250818ViewCommand

from hms_memory_gateway.engine import Engine
from hms_memory_tool import HolographicMemoryTool, HolographicMemoryToolSync
from hms_memory_tool.direct import DirectMemory
from hms_memory_tool.errors import ConnectionLost, Unavailable
from hms_memory_tool.session import EngineSession
from hms_memory_tool.store import ToolFailed
from hms_memory_tool.tools import CLOSED, UNCONFIRMED, UNREACHABLE

from .conftest import Gateway, stop
from .ports import free_port
from .test_cli import environment, running

VIEW = {"command": "view", "path": "/memories"}
EMPTY = "\n0B\t/memories"
KINDS = pytest.mark.parametrize("kind", [HolographicMemoryTool, HolographicMemoryToolSync])


@KINDS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"command": "hms-mcp", "url": "http://localhost/mcp"},
        {"url": "http://localhost/mcp", "gateway": "http://localhost"},
        {"gateway": "http://localhost", "args": ["x"]},
        {"url": "http://localhost/mcp", "env": {"A": "b"}},
        {"command": "hms-mcp", "token": "t"},
        {"gateway": "http://localhost", "max_file_bytes": 5},
        {"gateway": "http://localhost", "max_view_chars": 500},
        {"command": "hms-mcp", "total_seconds": 5},
        {"command": "hms-mcp", "total_seconds": 0},
        {"gateway": "http://localhost", "total_seconds": 0},
        {"gateway": "http://localhost", "total_seconds": -1},
        {"command": "hms-mcp", "max_file_bytes": 0},
        {"command": "hms-mcp", "max_view_chars": 0},
        {"url": "http://localhost/mcp", "max_view_chars": 99},
        {"gateway": "localhost:8080"},
        {"command": "hms-mcp", "namespace": "alice@example.com"},
        {"url": "http://localhost/mcp", "namespace": "Alice"},
        {"url": "http://localhost/mcp", "token": "ümlaut-token"},
        {"url": "http://localhost/mcp", "token": "from-a-file\n"},
    ],
)
def test_options_that_do_not_go_together_are_an_error_at_once(
    kind: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="`"):
        kind.connect(**options)


def test_the_classes_are_those_of_the_sdk() -> None:
    assert issubclass(HolographicMemoryTool, BetaAsyncAbstractMemoryTool)
    assert issubclass(HolographicMemoryToolSync, BetaAbstractMemoryTool)


def test_cache_control_is_part_of_the_definition() -> None:
    tool = HolographicMemoryToolSync.connect(
        gateway="http://localhost", cache_control={"type": "ephemeral"}
    )
    assert tool.to_dict() == {
        "type": "memory_20250818",
        "name": "memory",
        "cache_control": {"type": "ephemeral"},
    }
    tool.close()


def connected(gateway: Gateway, kind: Any = HolographicMemoryToolSync) -> Any:
    return kind.connect(gateway=str(gateway.http.base_url), namespace=gateway.client().namespace)


@pytest.fixture(params=["gateway", "command"])
def options(
    request: pytest.FixtureRequest, gateway: Gateway, engine: Engine, tmp_path: Path
) -> dict[str, Any]:
    if request.param == "gateway":
        namespace = gateway.client().namespace
        return {"gateway": str(gateway.http.base_url), "namespace": namespace}
    return {"command": str(engine.path), "args": [f"--data-dir={tmp_path}"]}


def test_a_synchronous_tool_closes_once_and_says_so_when_used_after(
    options: dict[str, Any],
) -> None:
    with HolographicMemoryToolSync.connect(**options) as tool:
        recall_tool = tool.recall_tool()
        assert tool.call(VIEW).endswith(EMPTY)
    tool.close()
    for call in (
        lambda: tool.call(VIEW),
        lambda: tool.recall("x"),
        lambda: recall_tool.call({"query": "x"}),
        tool.clear_all_memory,
        tool.__enter__,
    ):
        with pytest.raises(ToolError) as raised:
            call()
        assert raised.value.content == CLOSED


def test_an_asynchronous_tool_belongs_to_no_loop(options: dict[str, Any]) -> None:
    tool = HolographicMemoryTool.connect(**options)

    async def use() -> str:
        return await tool.call(VIEW)

    assert anyio.run(use).endswith(EMPTY)
    assert anyio.run(use).endswith(EMPTY)
    anyio.run(tool.aclose)
    anyio.run(tool.aclose)
    with pytest.raises(ToolError) as raised:
        anyio.run(use)
    assert raised.value.content == CLOSED


@pytest.mark.anyio
async def test_a_synchronous_tool_works_inside_a_running_loop(options: dict[str, Any]) -> None:
    with HolographicMemoryToolSync.connect(**options) as tool:
        assert tool.call(VIEW).endswith(EMPTY)


def test_eight_threads_share_a_tool(options: dict[str, Any]) -> None:
    with HolographicMemoryToolSync.connect(**options) as tool:
        tool.call({"command": "create", "path": "/memories/a", "file_text": ""})

        def insert(number: int) -> str:
            return tool.call(
                {
                    "command": "insert",
                    "path": "/memories/a",
                    "insert_line": 0,
                    "insert_text": f"line {number}",
                }
            )

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(insert, range(40)))
        text = tool.call({"command": "view", "path": "/memories/a"})
    assert Counter(re.findall(r"line \d+$", text, re.MULTILINE)) == Counter(
        f"line {number}" for number in range(40)
    )


def test_the_sdks_own_command_models_are_taken_too(gateway: Gateway) -> None:
    command = BetaMemoryTool20250818ViewCommand(command="view", path="/memories")
    with connected(gateway) as tool:
        assert tool.execute(command).endswith(EMPTY)
        assert tool.view(command).endswith(EMPTY)


def test_all_memory_is_cleared_and_nothing_of_others(gateway: Gateway) -> None:
    with connected(gateway) as tool, connected(gateway) as other:
        for path in ("a", "d/e/f", "d/g", "node_modules/x", "z z"):
            tool.call({"command": "create", "path": f"/memories/{path}", "file_text": "word"})
        other.call({"command": "create", "path": "/memories/a", "file_text": "word"})
        assert tool.clear_all_memory() == "All memory cleared"
        assert tool.call(VIEW).endswith(EMPTY)
        assert tool.recall("word") == []
        assert tool.clear_all_memory() == "All memory cleared"
        assert [result.path for result in other.recall("word")] == ["/memories/a"]


def engine_of(folder: Path) -> int:
    """The process that was started here for a folder."""
    (child,) = (
        int(found)
        for task in Path("/proc/self/task").iterdir()
        for found in (task / "children").read_text().split()
        if b"--data-dir=" + bytes(folder) in Path(f"/proc/{found}/cmdline").read_bytes()
    )
    return child


def direct(engine: Engine, folder: Path) -> HolographicMemoryToolSync:
    return HolographicMemoryToolSync.connect(
        command=str(engine.path), args=[f"--data-dir={folder}"]
    )


def test_an_engine_that_died_is_replaced_at_the_next_call(engine: Engine, tmp_path: Path) -> None:
    with direct(engine, tmp_path) as tool:
        tool.call({"command": "create", "path": "/memories/a", "file_text": "x"})
        os.kill(engine_of(tmp_path), signal.SIGKILL)
        assert tool.call({"command": "view", "path": "/memories/a"}).endswith("\tx")


class Silent:
    """An engine that holds nothing, and gives no answer to calls of one of its tools."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.called = threading.Event()
        self.starts = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[EngineSession]:
        self.starts += 1
        self.ended = anyio.Event()
        try:
            yield cast("EngineSession", self)
        finally:
            self.ended.set()

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        if tool == self.tool:
            self.called.set()
            await self.ended.wait()
            raise ConnectionLost("gone")
        if tool == "get":
            raise ToolFailed("not_found", "it holds nothing")
        names = ("max_text_bytes", "max_page", "max_top_k", "max_metadata_bytes")
        stats = {"namespace": "n", "limits": dict.fromkeys(names, 10_000)}
        return {**stats, "memories": [], "next_cursor": None}


CREATE = {"command": "create", "path": "/memories/a", "file_text": "x"}


@pytest.mark.parametrize(
    ("command", "engines_tool", "sentence"),
    [(VIEW, "list", CLOSED), (CREATE, "list", CLOSED), (CREATE, "remember", UNCONFIRMED)],
)
def test_closing_ends_the_calls_that_are_under_way(
    command: dict[str, str], engines_tool: str, sentence: str
) -> None:
    silent = Silent(engines_tool)
    memory = DirectMemory(
        silent.open,
        None,
        is_shared=False,
        is_exclusive=True,
        max_file_bytes=None,
        max_view_chars=1_000,
    )
    tool = HolographicMemoryToolSync(memory)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(tool.call, command)
        assert silent.called.wait(10)
        tool.close()
        error = call.exception(10)
    assert isinstance(error, ToolError)
    assert error.content == sentence
    memory.close()
    with pytest.raises(Unavailable):
        memory.execute(VIEW)
    assert silent.starts == 1


def test_a_stopped_engine_does_not_hold_up_closing(engine: Engine, tmp_path: Path) -> None:
    with direct(engine, tmp_path) as tool, ThreadPoolExecutor(4) as threads:
        tool.call(VIEW)
        stop(engine_of(tmp_path))
        calls = [threads.submit(tool.call, CREATE) for _ in range(4)]
        tool.close()
        errors = [call.exception(30) for call in calls]
    assert {cast("ToolError", error).content for error in errors} <= {CLOSED, UNCONFIRMED}


def test_a_tool_that_is_forgotten_lets_go_of_its_engine(engine: Engine, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    tool = direct(engine, tmp_path)
    tool.call(CREATE)
    (thread,) = (one for one in set(threading.enumerate()) - before if one.name == "hms-memory")
    process = os.pidfd_open(engine_of(tmp_path))
    del tool
    gc.collect()
    assert select.select([process], [], [], 30)[0], "the engine still runs"
    os.close(process)
    thread.join(30)
    assert not thread.is_alive()
    with direct(engine, tmp_path) as another:
        assert another.call({"command": "view", "path": "/memories/a"}).endswith("\tx")


def test_an_engine_that_does_not_start_is_said_to_the_developer(
    engine: Engine, tmp_path: Path
) -> None:
    wrong = HolographicMemoryToolSync.connect(command=str(engine.path), args=["--no-such-option"])
    with pytest.raises(Unavailable, match="--no-such-option"):
        wrong.__enter__()
    wrong.close()


def run_program(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program, without the proxies of this process's environment."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )


def test_a_program_that_forgets_to_close_ends_all_the_same(engine: Engine, tmp_path: Path) -> None:
    ended = run_program(
        "from hms_memory_tool import HolographicMemoryToolSync as Tool\n"
        f"tool = Tool.connect(command={str(engine.path)!r}, args=['--data-dir={tmp_path}'])\n"
        "print(tool.call({'command': 'view', 'path': '/memories'}))\n"
    )
    assert ended.stdout.endswith(f"{EMPTY}\n")
    assert ended.stderr == ""


def test_a_direct_tool_says_in_a_child_that_it_is_its_parents(
    engine: Engine, tmp_path: Path
) -> None:
    ended = run_program(f"""
import os
from anthropic.lib.tools import ToolError
from hms_memory_tool import HolographicMemoryToolSync as Tool

tool = Tool.connect(command={str(engine.path)!r}, args=['--data-dir={tmp_path}'])
tool.call({CREATE})
if not (child := os.fork()):
    try:
        tool.call({VIEW})
    except ToolError as error:
        print(error.content, flush=True)
    tool.close()
    del tool
    os._exit(0)
os.waitpid(child, 0)
print(tool.call({{'command': 'view', 'path': '/memories/a'}}))
tool.close()
""")
    lines = ended.stdout.splitlines()
    assert (lines[0], lines[-1]) == (UNREACHABLE, "     1\tx")


class Recorder:
    """A server for any request, or a proxy: it notes what was asked for, and by which socket."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.ports: list[int] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                recorder.paths.append(self.path)
                recorder.ports.append(self.client_address[1])
                answer = b'{"content": "done", "is_error": false}'
                self.send_response(200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    thread = threading.Thread(target=recorder.server.serve_forever)
    thread.start()
    yield recorder
    recorder.server.shutdown()
    recorder.server.server_close()
    thread.join()


def test_a_child_has_connections_of_its_own_to_a_gateway(recorder: Recorder) -> None:
    run_program(f"""
import os
from hms_memory_tool import HolographicMemoryToolSync as Tool

tool = Tool.connect(gateway={recorder.url!r}, namespace='n')
tool.call({VIEW})
if not (child := os.fork()):
    tool.call({VIEW})
    tool.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
tool.call({VIEW})
tool.close()
""")
    first, childs, last = recorder.ports
    assert first == last != childs


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_gateway_on_this_machine_is_not_looked_for_behind_a_proxy(
    recorder: Recorder, gateway: Gateway, host: str
) -> None:
    ended = call_through_proxy(recorder, f"http://{host}:{gateway.http.base_url.port}")
    assert ended.stdout.endswith(f"{EMPTY}\n")
    assert recorder.paths == []


def test_a_gateway_elsewhere_is_asked_through_the_environments_proxy(recorder: Recorder) -> None:
    assert call_through_proxy(recorder, "http://memory.example").stdout == "done\n"
    assert recorder.paths == ["http://memory.example/memory/command"]


def call_through_proxy(recorder: Recorder, url: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        "from hms_memory_tool import HolographicMemoryToolSync as Tool\n"
        f"with Tool.connect(gateway='{url}', namespace='proxied', total_seconds=10) as tool:\n"
        f"    print(tool.call({VIEW}))\n",
        HTTP_PROXY=recorder.url,
    )


def test_a_call_that_was_cancelled_does_not_keep_the_program_from_ending() -> None:
    ended = run_program(f"""
import asyncio
from hms_memory_tool import HolographicMemoryTool as Tool


async def main():
    url = 'http://127.0.0.1:{free_port()}'
    tool = Tool.connect(gateway=url, namespace='n', total_seconds=600)
    try:
        async with asyncio.timeout(0.3):
            await tool.call({CREATE})
    except TimeoutError:
        print('cancelled')


asyncio.run(main())
""")
    assert ended.stdout == "cancelled\n"


def test_a_client_of_a_gateway_imports_nothing_heavy(gateway: Gateway) -> None:
    ended = run_program(
        "import sys\n"
        "from hms_memory_tool import HolographicMemoryTool, HolographicMemoryToolSync as Tool\n"
        f"tool = Tool.connect(gateway='{gateway.http.base_url}', namespace='thin')\n"
        "tool.call({'command': 'view', 'path': '/memories'})\n"
        "tool.recall_tool().call({'query': 'x'})\n"
        "tool.close()\n"
        "print([name for name in sys.modules if name.split('.')[0] in\n"
        "       ('mcp', 'mcp_types', 'fastapi', 'starlette', 'uvicorn', 'snowballstemmer',\n"
        "        'hms_memory_gateway')])\n"
    )
    assert ended.stdout == "[]\n"


def test_two_hundred_inserts_are_there_once_though_the_gateway_is_killed(
    engine: Engine, tmp_path: Path
) -> None:
    """kill -9 at random instants of the inserts; the client tries again, under the same key."""
    seed = random.randrange(1 << 32)
    logging.getLogger(__name__).warning("seed %d", seed)  # pytest shows it if this fails
    chance = random.Random(seed)
    kills = set(chance.sample(range(200), 8))
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_PORT=str(free_port()))
    due, is_over = threading.Event(), threading.Event()

    def gateways() -> None:
        while not is_over.is_set():
            with running(environ, tmp_path / "log") as gateway:
                due.wait()
                due.clear()
                threading.Event().wait(chance.uniform(0, 0.006))
                gateway.process.kill()
                gateway.process.wait()

    url = f"http://127.0.0.1:{environ['HMS_GATEWAY_PORT']}"
    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(gateways)
        try:
            with HolographicMemoryToolSync.connect(gateway=url, namespace="n") as tool:
                tool.call({"command": "create", "path": "/memories/a", "file_text": ""})
                for number in range(200):
                    if number in kills:
                        due.set()
                    insert = {"command": "insert", "insert_line": 0, "insert_text": f"n{number}"}
                    tool.call({**insert, "path": "/memories/a"})
                text = tool.call({"command": "view", "path": "/memories/a"})
        finally:
            is_over.set()
            due.set()
        served.result()
    lines = [line.partition("\t")[2] for line in text.split("\n")[1:]]
    assert Counter(lines) == Counter(f"n{number}" for number in range(200))
