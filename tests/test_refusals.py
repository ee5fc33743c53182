"""What is wrong with a path or an input is said without an engine ever being asked."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hms_memory_gateway.connection import Memory
from hms_memory_gateway.settings import Settings

from .conftest import Client, serving


@asynccontextmanager
async def no_engine(namespace: str) -> AsyncGenerator[Memory]:
    """Makes every request that reaches an engine a 503, which the tests below never accept."""
    raise AssertionError("a refused input reached the engine")
    yield


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a gateway without any engine."""
    with serving(Settings(data_dir=tmp_path_factory.mktemp("none")), no_engine) as gateway:
        yield gateway.client()


ESCAPING = [
    "/memories/..",
    "/memories/../",
    "/memories/../etc/passwd",
    "/memories/../../../../etc/passwd",
    "/memories/a/../../etc/passwd",
    "/memories/a/..",
    "/memories/a/../b",
    "/memories/../memories/a",
    "/memories/a/b/../../../..",
]
OUTSIDE = [
    "",
    "/",
    "/etc/passwd",
    "memories/a",
    "./memories/a",
    "../memories/a",
    "/MEMORIES/a",
    "/memoriesX",
    "/memoriesX/a",
    "/memories.txt",
    "//memories/a",
    "file:///memories/a",
    "C:\\memories\\a",
    "/memories\\..\\etc",
    "~/memories/a",
    " /memories/a",
    "%2fmemories/a",
    "\uff0fmemories/a",
]
ODD = [
    # aliases of one path
    "/memories//a",
    "/memories/a//b",
    "/memories/./a",
    "/memories/a/.",
    "/memories/.",
    "/memories//",
    # encoded
    "/memories/%2e%2e/etc",
    "/memories/%2E%2E/etc",
    "/memories/.%2e/etc",
    "/memories/..%2fetc",
    "/memories/..%5cetc",
    "/memories/a%00b",
    # backslashes
    "/memories/..\\etc",
    "/memories/a\\b",
    # hidden
    "/memories/.env",
    "/memories/...",
    "/memories/a/.git/config",
    # unprintable
    "/memories/a\x00b",
    "/memories/a\nb",
    "/memories/a\x7fb",
    "/memories/a\x85b",
    "/memories/\ud83d",
    # too long, too deep
    "/memories/" + "n" * 129,
    "/memories/" + "中" * 83,
    "/memories" + "/d" * 17,
]
REFUSED = [*ESCAPING, *OUTSIDE, *ODD]
COMMANDS: list[dict[str, Any]] = [
    {"command": "view", "path": None},
    {"command": "create", "path": None, "file_text": "x"},
    {"command": "str_replace", "path": None, "old_str": "a", "new_str": "b"},
    {"command": "insert", "path": None, "insert_line": 0, "insert_text": "x"},
    {"command": "delete", "path": None},
    {"command": "rename", "old_path": None, "new_path": "/memories/ok"},
    {"command": "rename", "old_path": "/memories/ok", "new_path": None},
]


@pytest.mark.parametrize("path", REFUSED)
def test_a_bad_path_is_refused_by_every_command(isolated: Client, path: str) -> None:
    for command in COMMANDS:
        given = {name: path if value is None else value for name, value in command.items()}
        is_ok, text = isolated.execute(given)
        assert not is_ok
        assert text.isprintable(), repr(text)
        if path in ESCAPING and not (path.endswith("/") and command["command"] == "view"):
            assert text == f"Path {path} would escape /memories directory"
        if path in OUTSIDE:
            assert text == f"Path must start with /memories, got: {path}"


@pytest.mark.parametrize("path", ["/memories/", "/memories/a/"])
def test_a_final_slash_is_dropped_in_view_alone(isolated: Client, path: str) -> None:
    for command in COMMANDS[1:]:
        given = {name: path if value is None else value for name, value in command.items()}
        is_ok, text = isolated.execute(given)
        assert (is_ok, "empty name" in text) == (False, True)


def test_a_path_that_is_endless_is_not_sent_back_whole(isolated: Client) -> None:
    for start in ("/memories/", "/etc/", "/memories/../"):
        assert len(isolated.command("view", path=start + "x" * 100_000)[1]) < 500


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "command"),
        ({"command": None}, "command"),
        ({"command": "append"}, "command"),
        ({"command": ["view"]}, "command"),
        ({"command": "\ud800"}, "command"),
        ({"command": "view"}, "path"),
        ({"command": "view", "path": 5}, "path"),
        ({"command": "view", "path": ["/memories"]}, "path"),
        ({"command": "create", "path": "/memories/a"}, "file_text"),
        ({"command": "create", "path": "/memories/a", "file_text": 5}, "file_text"),
        ({"command": "create", "path": "/memories/a", "file_text": "hi \ud83d"}, "file_text"),
        ({"command": "str_replace", "path": "/memories/a", "new_str": ""}, "old_str"),
        ({"command": "str_replace", "path": "/memories/a", "old_str": "\udc00"}, "old_str"),
        (
            {"command": "str_replace", "path": "/memories/a", "old_str": "a", "new_str": "\ud83d"},
            "new_str",
        ),
        ({"command": "insert", "path": "/memories/a", "insert_text": ""}, "insert_line"),
        (
            {"command": "insert", "path": "/memories/a", "insert_line": True, "insert_text": ""},
            "insert_line",
        ),
        (
            {"command": "insert", "path": "/memories/a", "insert_line": 1.5, "insert_text": ""},
            "insert_line",
        ),
        (
            {"command": "insert", "path": "/memories/a", "insert_line": 1, "insert_text": "\ud83d"},
            "insert_text",
        ),
        ({"command": "rename", "path": "/memories/a", "new_path": "/memories/b"}, "old_path"),
        ({"command": "rename", "old_path": "/memories/a"}, "new_path"),
    ],
)
def test_malformed_input_names_the_field(
    isolated: Client, given: dict[str, object], field: str
) -> None:
    is_ok, text = isolated.execute(given)
    assert not is_ok
    assert text.startswith(f"`{field}` ")
    assert text.isprintable()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "query"),
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": " \n"}, "query"),
        ({"query": 5}, "query"),
        ({"query": "x" * 4_097}, "query"),
        ({"query": "中" * 1_366}, "query"),
        ({"query": "half \ud83d"}, "query"),
        ({"query": "x", "k": 0}, "k"),
        ({"query": "x", "k": 51}, "k"),
        ({"query": "x", "k": -1}, "k"),
        ({"query": "x", "k": "5"}, "k"),
        ({"query": "x", "k": True}, "k"),
    ],
)
def test_a_recall_that_cannot_be_is_an_answer_for_claude(
    isolated: Client, given: dict[str, object], field: str
) -> None:
    answer = isolated.post("/memory/recall", given)
    assert answer.status_code == 200
    body = answer.json()
    assert body["is_error"] is True
    assert body["results"] == []
    assert body["content"].startswith(f"`{field}` ")


@pytest.mark.parametrize("given", [None, 5, "view", [], [{"command": "view"}]])
def test_a_tool_use_whose_input_is_no_object_is_an_answer(isolated: Client, given: object) -> None:
    block = {"type": "tool_use", "id": "t", "name": "memory", "input": given}
    results = isolated.post("/memory/tool-results", {"content": [block]}).json()["content"]
    assert [result["is_error"] for result in results] == [True]
    assert "object" in results[0]["content"]
