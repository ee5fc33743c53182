"""The tool classes: options, life cycle, threads and loops, and what a thin client imports."""

import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import BetaMemoryTool20250818ViewCommand

from hms_memory_gateway.engine import Engine
from hms_memory_tool import HolographicMemoryTool, HolographicMemoryToolSync
from hms_memory_tool.errors import Unavailable
from hms_memory_tool.tools import CLOSED

from .conftest import Gateway
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
        {"gateway": "localhost:8080"},
        {"command": "hms-mcp", "namespace": "alice@example.com"},
        {"url": "http://localhost/mcp", "namespace": "Alice"},
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


def test_an_engine_that_died_is_replaced_at_the_next_call(engine: Engine, tmp_path: Path) -> None:
    tool = HolographicMemoryToolSync.connect(
        command=str(engine.path), args=[f"--data-dir={tmp_path}"]
    )
    with tool:
        tool.call({"command": "create", "path": "/memories/a", "file_text": "x"})
        (child,) = (
            int(found)
            for task in Path("/proc/self/task").iterdir()
            for found in (task / "children").read_text().split()
            if b"--data-dir=" + bytes(tmp_path) in Path(f"/proc/{found}/cmdline").read_bytes()
        )
        os.kill(child, signal.SIGKILL)
        assert tool.call({"command": "view", "path": "/memories/a"}).endswith("\tx")


def test_an_engine_that_does_not_start_is_said_to_the_developer(
    engine: Engine, tmp_path: Path
) -> None:
    wrong = HolographicMemoryToolSync.connect(command=str(engine.path), args=["--no-such-option"])
    with pytest.raises(Unavailable, match="--no-such-option"):
        wrong.__enter__()
    wrong.close()


def test_a_program_that_forgets_to_close_ends_all_the_same(engine: Engine, tmp_path: Path) -> None:
    program = (
        "from hms_memory_tool import HolographicMemoryToolSync as Tool\n"
        f"tool = Tool.connect(command={str(engine.path)!r}, args=['--data-dir={tmp_path}'])\n"
        "print(tool.call({'command': 'view', 'path': '/memories'}))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.endswith(f"{EMPTY}\n")
    assert ended.stderr == ""


def test_a_client_of_a_gateway_imports_nothing_heavy(gateway: Gateway) -> None:
    program = (
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
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "[]\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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
