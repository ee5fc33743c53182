"""The HTTP contract: routes, bodies, problem documents, what an answer looks like."""

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from hms_memory_gateway.application import create_app
from hms_memory_gateway.connection import Memory
from hms_memory_gateway.folders import Folders
from hms_memory_gateway.problems import STATUS
from hms_memory_gateway.settings import Settings
from hms_memory_tool.errors import (
    AlreadyExists,
    Contended,
    MemoryFault,
    NotFound,
    Refused,
    StoreLocked,
    VersionConflict,
)
from hms_memory_tool.gateway import GatewayRefused

from .conftest import Client, Gateway, Serve, serving

PROBLEM_KEYS = {"type", "title", "status", "detail", "code", "request_id"}
VIEW = {"command": "view", "path": "/memories"}


def check_problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body.keys() == PROBLEM_KEYS
    assert (body["status"], body["code"]) == (status, code)
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


def test_a_memory_is_stored_read_edited_recalled_and_deleted(client: Client) -> None:
    path = "/memories/customers/acme.md"
    assert client.command("create", path=path, file_text="# Acme\nPrefers email.\n")[0]
    assert client.command("view", path=path)[1].endswith("\n     1\t# Acme\n     2\tPrefers email.")
    assert client.command("str_replace", path=path, old_str="email", new_str="phone")[0]
    assert [result["path"] for result in client.recall("phone")] == [path]
    assert client.command("delete", path="/memories/customers")[0]
    assert client.recall("phone") == []


def test_a_path_is_looked_up_exactly_never_searched(client: Client) -> None:
    client.command("create", path="/memories/notes_backup.txt", file_text="notes backup")
    for command in (
        {"command": "view"},
        {"command": "str_replace", "old_str": "notes", "new_str": "x"},
        {"command": "insert", "insert_line": 0, "insert_text": "x"},
        {"command": "delete"},
    ):
        for path in ("/memories/notes.txt", "/memories/notes", "/memories/notes_backup"):
            assert not client.execute({**command, "path": path})[0]
    text = client.command("view", path="/memories/notes_backup.txt")[1]
    assert text.endswith("\tnotes backup")


def test_half_of_a_surrogate_pair_costs_nobody_anything(client: Client, gateway: Gateway) -> None:
    """The engine's connection would end if such a text reached it."""
    other = gateway.client()
    client.command("create", path="/memories/a", file_text="x")
    other.command("create", path="/memories/a", file_text="y")
    raw = b'{"command":"create","path":"/memories/e.md","file_text":"hi \\ud83d"}'
    headers = {"X-Memory-Namespace": client.namespace, "Content-Type": "application/json"}
    answer = gateway.http.post("/memory/command", content=raw, headers=headers)
    assert answer.json()["is_error"] is True
    assert "`file_text`" in answer.json()["content"]
    assert client.command("view", path="/memories/a")[1].endswith("\tx")
    assert other.command("view", path="/memories/a")[1].endswith("\ty")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "body_invalid"),
        (b"{", "body_invalid"),
        (b"[]", "body_invalid"),
        (b'"view"', "body_invalid"),
        (b"null", "body_invalid"),
        (b"NaN", "body_invalid"),
        (b'{"command": NaN}', "body_invalid"),
        (b'{"command": "view", "path": "/memories", "view_range": [1, Infinity]}', "body_invalid"),
        (b"\xff\xfe{\x00}\x00", "body_invalid"),  # UTF-16
        (b"\xef\xbb\xbf{}", "body_invalid"),  # a byte order mark is no JSON
        (b"command=view", "body_invalid"),
        (b"[" * 100_000, "body_invalid"),
        (b'{"a":' * 100_000, "body_invalid"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "body_invalid"),
    ],
)
def test_a_body_that_is_no_json_object_is_the_callers_fault(
    gateway: Gateway, body: bytes, code: str
) -> None:
    for route in ("/memory/command", "/memory/recall", "/memory/tool-results"):
        answer = gateway.http.post(route, content=body, headers={"X-Memory-Namespace": "n"})
        check_problem(answer, 400, code)


def test_a_body_over_the_limit_is_refused_announced_or_not(serve: Serve) -> None:
    with serve(max_body_bytes=2_000) as gateway:
        fits = json.dumps({**VIEW, "more": "x" * 1_900})
        headers = {"X-Memory-Namespace": "n"}
        post = gateway.http.post
        assert post("/memory/command", content=fits, headers=headers).status_code == 200
        large = fits.encode() + b" " * 2_000
        check_problem(
            post("/memory/command", content=large, headers=headers), 413, "body_too_large"
        )
        chunks = (large[at : at + 100] for at in range(0, len(large), 100))
        check_problem(
            post("/memory/command", content=chunks, headers=headers), 413, "body_too_large"
        )
        assert post("/memory/command", content=fits, headers=headers).status_code == 200


def test_an_endless_body_is_refused_while_it_is_being_sent(serve: Serve) -> None:
    with serve(max_body_bytes=2_000) as gateway:
        url = gateway.http.base_url
        with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
            connection.sendall(
                b"POST /memory/command HTTP/1.1\r\nHost: localhost\r\nX-Memory-Namespace: n\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1_024 + b"\r\n"
                b"400\r\n" + b" " * 1_024 + b"\r\n"
            )
            assert connection.recv(4_096).startswith(b"HTTP/1.1 413 ")


def test_a_head_that_does_not_end_is_refused_while_it_is_being_sent(tmp_path: Path) -> None:
    """Before any token could be looked at. Bodies are not heads, and connections are kept."""
    with serving(Settings(data_dir=tmp_path), failing) as gateway:
        url = gateway.http.base_url
        with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Endless: ")
            with suppress(OSError):  # it may be closed before all is sent
                for _ in range(100):
                    connection.sendall(b"x" * 65_536)
            with suppress(ConnectionResetError):
                assert connection.recv(4_096).startswith(b"HTTP/1.1 431 ")
        for _ in range(3):
            large = json.dumps({"command": "none", "more": "x" * 900_000})
            headers = {"X-Memory-Namespace": "n", "X-Long": "x" * 30_000}
            answer = gateway.http.post("/memory/command", content=large, headers=headers)
            assert answer.json()["is_error"] is True


def test_unknown_routes_and_methods_are_problems(gateway: Gateway) -> None:
    for path in (
        "/",
        "/memory",
        "/memory/command/",
        "/namespaces",
        "/no-such-route",
        "/memory/nope",
    ):
        check_problem(gateway.http.get(path), 404, "route_not_found")
    answer = gateway.http.get("/memory/command")
    check_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


def test_the_callers_request_id_is_kept_if_it_is_a_plain_one(gateway: Gateway) -> None:
    answer = gateway.http.get("/healthz", headers={"X-Request-Id": "trace-1.a_B"})
    assert answer.headers["x-request-id"] == "trace-1.a_B"
    answer = gateway.http.get("/healthz", headers={"X-Request-Id": "no good"})
    assert answer.headers["x-request-id"] not in ("", "no good")


def test_a_problem_never_repeats_what_was_sent(gateway: Gateway) -> None:
    marker = "Zebra42"
    headers = {"X-Memory-Namespace": f"{marker}\x7f"}
    for answer in (
        gateway.http.post("/memory/command", content=b'{"Zebra42', headers={**headers}),
        gateway.http.post(f"/{marker}", json={}),
        gateway.http.post("/memory/command", json=VIEW, headers={"Host": marker}),
        gateway.http.post("/memory/command", json={}, headers={"Authorization": marker}),
    ):
        assert answer.status_code >= 400
        assert marker not in answer.text


def test_tools_are_ready_for_a_messages_request(gateway: Gateway) -> None:
    memory, recall = gateway.http.get("/memory/tools").json()["tools"]
    assert memory == {"type": "memory_20250818", "name": "memory"}
    assert recall["name"] == "memory_recall"
    assert recall["input_schema"]["required"] == ["query"]


def use(identity: str, name: str = "memory", **fields: object) -> dict[str, object]:
    return {"type": "tool_use", "id": identity, "name": name, "input": fields}


def test_tool_results_answer_each_block_of_ours_in_order(client: Client) -> None:
    content = [
        {"type": "thinking", "thinking": "...", "signature": "..."},
        {"type": "text", "text": "I'll note that."},
        {**use("t1", command="create", path="/memories/a", file_text="blue"), "caller": None},
        use("t2", command="str_replace", path="/memories/a", old_str="blue", new_str="green"),
        use("t3", "get_weather", city="Oslo"),
        use("t4", command="view", path="/memories/../etc"),
        use("t5", "memory_recall", query="green"),
        {"type": "server_tool_use", "id": "t6", "name": "memory", "input": {}},
        {**use("t7"), "input": None},
    ]
    answer = client.post("/memory/tool-results", {"content": content, "role": "assistant"})
    assert answer.status_code == 200, answer.text
    results = answer.json()["content"]
    assert [result["tool_use_id"] for result in results] == ["t1", "t2", "t4", "t5", "t7"]
    assert [result["is_error"] for result in results] == [False, False, True, False, True]
    assert all(result["type"] == "tool_result" for result in results)
    assert "/memories/a" in results[3]["content"]
    assert results[2]["content"] == "Path /memories/../etc would escape /memories directory"


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        {"type": "text"},
        [1],
        [{"no": "type"}],
        [{"type": "tool_use", "name": "memory", "input": {}}],
        [{"type": "tool_use", "name": "memory", "input": {}, "id": ""}],
        [{"type": "tool_use", "name": "memory", "input": {}, "id": "t\ud83d"}],
        [{"type": "tool_use", "name": "memory", "input": {}, "id": "t1"}],
        [{"type": 5}],
    ],
)
def test_content_that_is_no_list_of_blocks_runs_nothing(client: Client, content: object) -> None:
    create = use("t1", command="create", path="/memories/a", file_text="x")
    given = [create, *content] if isinstance(content, list) else content
    check_problem(client.post("/memory/tool-results", {"content": given}), 400, "body_invalid")
    assert not client.command("view", path="/memories/a")[0]


def test_content_without_blocks_of_ours_gives_no_results(client: Client) -> None:
    for content in ([], [{"type": "text", "text": "hi"}]):
        assert client.post("/memory/tool-results", {"content": content}).json() == {"content": []}


@asynccontextmanager
async def failing(namespace: str) -> AsyncGenerator[Memory]:
    """An engine that never starts."""
    raise OSError(f"/secret/path of {namespace}")
    yield


@asynccontextmanager
async def broken(namespace: str) -> AsyncGenerator[Memory]:
    """An engine whose files are not even files: a defect of ours."""
    yield Memory(None, anyio.Event(), anyio.sleep_forever)  # type: ignore[arg-type]


def test_an_engine_that_does_not_start_is_a_retryable_problem(tmp_path: Path) -> None:
    with serving(Settings(data_dir=tmp_path), failing) as gateway:
        answer = gateway.client("n").post("/memory/command", VIEW)
        body = check_problem(answer, 503, "engine_start_failed")
        assert answer.headers["retry-after"] == "1"
        assert "secret" not in body["detail"]


def test_tool_results_of_an_engine_that_does_not_start_are_a_problem(tmp_path: Path) -> None:
    with serving(Settings(data_dir=tmp_path), failing) as gateway:
        body = {"content": [use("t1", **VIEW)]}
        answer = gateway.client("n").post("/memory/tool-results", body)
        check_problem(answer, 503, "engine_start_failed")


def test_health_needs_no_engine_and_opens_no_store(tmp_path: Path) -> None:
    with serving(Settings(data_dir=tmp_path), failing) as gateway:
        for _ in range(100):
            assert gateway.http.get("/healthz").json() == {"status": "ok"}
            assert gateway.http.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize(
    ("path", "status"), [("/memory/command", 413), ("/nowhere", 404), ("/healthz", 405)]
)
def test_an_answer_reaches_whoever_still_sends_on_a_connection_that_ends(
    gateway: Gateway, path: str, status: int
) -> None:
    """As a proxy does that has a connection for each request."""
    size = 4_000_000
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "X-Memory-Namespace: n"]
    head += [f"Content-Length: {size}", "Connection: close", "", ""]
    port = gateway.http.base_url.port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(head).encode() + b" " * size)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_defect_of_ours_is_a_problem_without_its_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Settings(data_dir=tmp_path), broken) as gateway:
        client = gateway.client()
        check_problem(client.post("/memory/command", VIEW), 500, "internal")
        assert gateway.http.get("/healthz").status_code == 200
    (record,) = [record for record in caplog.records if record.name.endswith("middleware")]
    assert "AttributeError at" in record.getMessage()


def subclasses(kind: type[MemoryFault]) -> set[type[MemoryFault]]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


def test_every_fault_has_a_status_and_a_code_of_its_own() -> None:
    """But for those that never reach HTTP: answers, what commands translate, the client's own."""
    elsewhere = {
        MemoryFault,
        Refused,
        Contended,
        NotFound,
        AlreadyExists,
        VersionConflict,
        StoreLocked,
        GatewayRefused,
    }
    faults = subclasses(MemoryFault) - elsewhere
    assert faults == set(STATUS)
    assert len({kind.code for kind in faults}) == len(faults)


class Unreadable(Folders):
    """Fails in a way that nobody has thought of."""

    def marked(self, seconds: float) -> list[str]:
        raise RuntimeError(seconds)


@pytest.mark.anyio
async def test_a_gateway_that_cannot_go_on_says_so_and_ends(tmp_path: Path) -> None:
    settings, ended = Settings(data_dir=tmp_path), anyio.Event()
    app = create_app(settings, broken, folders=Unreadable(tmp_path), on_failure=ended.set)
    with pytest.raises(ExceptionGroup):
        async with app.router.lifespan_context(app):
            await anyio.sleep_forever()
    assert ended.is_set()
