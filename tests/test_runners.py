"""The SDK's real tool runners, against a scripted endpoint, with a real gateway and engine.

Sync and async, over the gateway, over a started hms-mcp and over a shared one.
"""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.lib.tools import ToolError

from hms_memory_gateway.engine import Engine
from hms_memory_tool import HolographicMemoryTool, HolographicMemoryToolSync
from hms_memory_tool.tools import UNREACHABLE

from .conftest import Gateway, Serve, shared_engine
from .ports import free_port
from .scripted_claude import Script, scripted, use
from .test_conformance import CASES, expanded

MODEL = "claude-sonnet-5-5"
ASK: Any = [{"role": "user", "content": "Remember that Acme Corp prefers email follow-ups."}]
TURNS = [
    [use("t1", "memory", command="view", path="/memories")],
    [
        use("t2", "memory", command="create", path="/memories/acme.md", file_text="email\n"),
        use("t3", "memory", command="str_replace", path="/memories/acme.md", old_str="email"),
        use(
            "t4",
            "memory",
            command="insert",
            path="/memories/acme.md",
            insert_line=0,
            insert_text="prefers phone",
        ),
        use("t5", "memory", command="view", path="/memories/acme.md"),
    ],
    [
        use("t6", "memory", command="rename", old_path="/memories/acme.md", new_path="/memories/b"),
        use("t7", "memory_recall", query="phone"),
        use("t8", "memory", command="view", path="/memories/../etc/passwd"),
        use("t9", "memory", command="undo_edit", path="/memories/b"),
        use("t10", "memory_recall", query=" "),
        use("t11", "memory", command="delete", path="/memories/b"),
        use("t12", "memory", command="view", path="/memories/b"),
    ],
]


@pytest.fixture(scope="module")
def shared(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    token = "a-token-of-sixteen"
    with shared_engine(engine, tmp_path_factory.mktemp("shared"), token) as (url, _):
        yield {"url": url, "token": token}


@pytest.fixture(params=["gateway", "command", "url"])
def options(
    request: pytest.FixtureRequest,
    gateway: Gateway,
    engine: Engine,
    shared: dict[str, str],
    tmp_path: Path,
) -> dict[str, Any]:
    """The options of `connect` for a new namespace, over each way there is."""
    namespace = gateway.client().namespace
    if request.param == "gateway":
        return {"gateway": str(gateway.http.base_url), "namespace": namespace}
    if request.param == "command":
        return {"command": str(engine.path), "args": [f"--data-dir={tmp_path}"]}
    return {**shared, "namespace": namespace}


def check(script: Script) -> None:
    first = script.requests[0]
    assert {"type": "memory_20250818", "name": "memory"} in first["tools"]
    assert [tool["name"] for tool in first["tools"]] == ["memory", "memory_recall"]
    told = script.told()
    assert [identity for identity, _, _ in told] == [f"t{number}" for number in range(1, 13)]
    texts = {identity: text for identity, _, text in told}
    errors = [identity for identity, is_error, _ in told if is_error]
    assert errors == ["t8", "t9", "t10", "t12"]
    assert texts["t1"].endswith("\n0B\t/memories")
    assert texts["t5"].endswith("\n     1\tprefers phone")
    assert "/memories/b" in texts["t7"]
    assert texts["t8"] == "Path /memories/../etc/passwd would escape /memories directory"
    assert texts["t9"].startswith("`command` should be one of ")
    assert texts["t10"].startswith("`query` ")
    assert texts["t11"] == "Successfully deleted /memories/b"
    assert texts["t12"] == "The path /memories/b does not exist. Please provide a valid path."


THREADS = pytest.mark.parametrize("threads", [{}, {"thread": False}], ids=["threads", "plain"])


@THREADS
def test_the_synchronous_runner_keeps_a_memory(
    options: dict[str, Any], threads: dict[str, Any]
) -> None:
    with scripted(TURNS) as (url, script), anthropic.Anthropic(api_key="x", base_url=url) as client:
        with HolographicMemoryToolSync.connect(**options) as memory:
            final = client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=1024,
                messages=ASK,
                tools=[memory, memory.recall_tool()],
                **threads,
            ).until_done()
        assert final.stop_reason == "end_turn"
    check(script)


@THREADS
@pytest.mark.anyio
async def test_the_asynchronous_runner_keeps_a_memory(
    options: dict[str, Any], threads: dict[str, Any]
) -> None:
    with scripted(TURNS) as (url, script):
        async with (
            anthropic.AsyncAnthropic(api_key="x", base_url=url) as client,
            HolographicMemoryTool.connect(**options) as memory,
        ):
            final = await client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=1024,
                messages=ASK,
                tools=[memory, memory.recall_tool()],
                **threads,
            ).until_done()
        assert final.stop_reason == "end_turn"
    check(script)


def test_a_gateway_that_is_down_is_one_sentence_for_claude() -> None:
    with (
        scripted(TURNS[:1]) as (url, script),
        anthropic.Anthropic(api_key="x", base_url=url) as client,
        HolographicMemoryToolSync.connect(
            gateway=f"http://127.0.0.1:{free_port()}", namespace="n", total_seconds=0.3
        ) as memory,
    ):
        client.beta.messages.tool_runner(
            model=MODEL, max_tokens=1024, messages=ASK, tools=[memory]
        ).until_done()
    assert script.told() == [("t1", True, UNREACHABLE)]


def test_a_wrong_token_is_one_sentence_for_claude(serve: Serve) -> None:
    with (
        serve(token="right-token") as gateway,
        scripted(TURNS[:1]) as (url, script),
        anthropic.Anthropic(api_key="x", base_url=url) as client,
        HolographicMemoryToolSync.connect(
            gateway=str(gateway.http.base_url), namespace="n", token="wrong-token"
        ) as memory,
    ):
        client.beta.messages.tool_runner(
            model=MODEL, max_tokens=1024, messages=ASK, tools=[memory]
        ).until_done()
    assert script.told() == [("t1", True, UNREACHABLE)]


Call = Callable[[dict[str, Any]], Awaitable[str]]


async def _case(
    call: Call, clear: Callable[[], Awaitable[str]], case: dict[str, Any]
) -> str | None:
    """Run a case in an emptied memory, as a runner hands it over; what is wrong, if anything."""
    await clear()
    for step in case["setup"]:
        await call(expanded(step))
    expect = case["expect"]
    try:
        is_ok, text = True, await call(expanded(case["command"]))
    except ToolError as error:
        is_ok, text = False, str(error)
    if expect["ok"] not in (None, is_ok) or expect["text"] not in (None, text):
        return f"{case['name']}: {text}"
    return None


def test_every_conformance_case_through_the_synchronous_shim(options: dict[str, Any]) -> None:
    async def run() -> list[str | None]:
        with HolographicMemoryToolSync.connect(**options) as tool:

            async def call(given: dict[str, Any]) -> str:
                return tool.call(given)

            async def clear() -> str:
                return tool.clear_all_memory()

            return [await _case(call, clear, case) for case in CASES]

    assert list(filter(None, anyio.run(run))) == []


@pytest.mark.anyio
async def test_every_conformance_case_through_the_asynchronous_shim(
    options: dict[str, Any],
) -> None:
    async with HolographicMemoryTool.connect(**options) as tool:
        told = [await _case(tool.call, tool.clear_all_memory, case) for case in CASES]
    assert list(filter(None, told)) == []
