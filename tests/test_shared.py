"""A gateway over a shared hms-mcp: the same memory, and its engine's troubles."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import anyio
import pytest

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.readiness import answers
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.shared import shared

from .conftest import Gateway, serving, shared_engine
from .ports import free_port

TOKEN = "a-token-of-sixteen"
VIEW = {"command": "view", "path": "/memories"}


def over(url: str, folder: Path, token: str = TOKEN) -> AbstractContextManager[Gateway]:
    """A gateway over the engine at an address."""
    settings = Settings(data_dir=folder)
    return serving(settings, shared(url, settings, {"HMS_MCP_TOKEN": token}))


@pytest.mark.parametrize("token", ["with spaces inside", " and one before it"])
def test_a_token_that_the_engine_takes_is_sent_as_it_is(
    engine: Engine, tmp_path: Path, token: str
) -> None:
    with (
        shared_engine(engine, tmp_path / "stores", token) as (url, _),
        over(url, tmp_path, token) as gateway,
    ):
        assert gateway.client().command("view", path="/memories")[0]


@pytest.fixture
def url(engine: Engine, tmp_path: Path) -> Iterator[str]:
    with shared_engine(engine, tmp_path / "stores", TOKEN) as (url, _):
        yield url


def test_namespaces_of_a_shared_engine_never_meet(url: str, tmp_path: Path) -> None:
    with over(url, tmp_path) as gateway:
        one, two = gateway.client("alice@example.com"), gateway.client("bob")
        assert one.command("create", path="/memories/a", file_text="unique token")[0]
        assert [result["path"] for result in one.recall("token")] == ["/memories/a"]
        assert two.recall("token") == []
        assert two.command("view", path="/memories")[1].endswith("\n0B\t/memories")


def test_two_gateways_that_edit_one_file_lose_nothing(url: str, tmp_path: Path) -> None:
    with ExitStack() as gateways:
        clients = [gateways.enter_context(over(url, tmp_path)).client("n") for _ in range(2)]
        clients[0].command("create", path="/memories/a", file_text="")

        def insert(number: int) -> bool:
            return clients[number % 2].command(
                "insert", path="/memories/a", insert_line=0, insert_text=f"n{number}"
            )[0]

        with ThreadPoolExecutor(10) as threads:
            assert all(threads.map(insert, range(60)))
        text = clients[0].command("view", path="/memories/a")[1]
    lines = [line.partition("\t")[2] for line in text.split("\n")[1:]]
    assert Counter(lines) == Counter(f"n{number}" for number in range(60))


def test_a_restart_of_the_engine_is_noticed_by_nobody(engine: Engine, tmp_path: Path) -> None:
    """Its sessions are forgotten then, as they are after five minutes of silence."""
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        url, _ = first.enter_context(shared_engine(engine, tmp_path / "stores", TOKEN, port=port))
        client = stack.enter_context(over(url, tmp_path)).client()
        assert client.command("create", path="/memories/a", file_text="x\n")[0]
        first.close()
        down = client.post("/memory/command", VIEW)
        assert (down.status_code, down.json()["code"]) == (503, "engine_start_failed")
        stack.enter_context(shared_engine(engine, tmp_path / "stores", TOKEN, port=port))
        for number in range(3):
            insert = {"insert_line": 0, "insert_text": str(number)}
            assert client.command("insert", path="/memories/a", **insert)[0]
        assert client.command("view", path="/memories/a")[1].count("\n") == 4


def test_a_restart_between_two_calls_costs_no_call(engine: Engine, tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        url, _ = first.enter_context(shared_engine(engine, tmp_path / "stores", TOKEN, port=port))
        client = stack.enter_context(over(url, tmp_path)).client()
        assert client.command("create", path="/memories/a", file_text="x\n")[0]
        first.close()
        stack.enter_context(shared_engine(engine, tmp_path / "stores", TOKEN, port=port))
        for _ in range(3):
            assert client.command("view", path="/memories/a")[0]


@pytest.mark.parametrize(
    ("token", "path", "said"),
    [("another-token-16", "/mcp", "HMS_MCP_TOKEN"), (TOKEN, "/elsewhere", "/mcp")],
)
def test_what_the_operator_has_to_change_is_in_the_log(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, path: str, said: str
) -> None:
    with over(url.replace("/mcp", path), tmp_path, token) as gateway:
        answer = gateway.client().post("/memory/command", VIEW)
        assert answer.status_code == 503
    assert said in caplog.text
    assert said not in answer.text


def test_an_engine_that_refuses_our_host_says_how_to_allow_it(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As between containers: there, the engine's name is none of loopback's."""
    with (
        shared_engine(engine, tmp_path / "s", TOKEN, "--allow-remote", host="0.0.0.0") as (url, _),  # noqa: S104
        over(url.replace("0.0.0.0", "127.0.0.2"), tmp_path) as gateway,  # noqa: S104
    ):
        assert gateway.client().post("/memory/command", VIEW).status_code == 503
    assert "--allow-host" in caplog.text


def test_an_engine_with_too_many_stores_says_so_to_its_operator(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        shared_engine(engine, tmp_path / "stores", TOKEN, "--max-stores=3") as (url, _),
        over(url, tmp_path) as gateway,
    ):
        for name in "ab":  # and the store that it opens at its start
            assert gateway.client(name).command("view", path="/memories")[0]
        answer = gateway.client("c").post("/memory/command", VIEW)
        assert answer.status_code == 503
        assert gateway.client("a").command("view", path="/memories")[0]
    assert "--max-stores" in caplog.text


def test_readiness_is_the_engines(url: str) -> None:
    assert anyio.run(answers(url))
    assert not anyio.run(answers("http://127.0.0.1:9/mcp"))
