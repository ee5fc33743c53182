"""The client of the gateway: what it sends, what an answer means, when it tries again."""

import json
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import httpx2
import pytest
from anthropic.lib.tools import ToolError

from hms_memory_tool import HolographicMemoryToolSync
from hms_memory_tool.errors import MemoryFault, OutcomeUnknown, Refused, Unavailable
from hms_memory_tool.gateway import GatewayMemory, GatewayRefused, abandoned, pause_seconds
from hms_memory_tool.tools import CLOSED, UNCONFIRMED, UNREACHABLE

URL, TOKEN = "http://memory.example:8080", "secret-marker-token"
CREATE = {"command": "create", "path": "/memories/a", "file_text": "x"}
VIEW = {"command": "view", "path": "/memories"}
Handler = Callable[[httpx2.Request], httpx2.Response]
HTML = "<html><head>Bad gateway at http://memory.example secret-marker</head></html>"


def good(content: str = "done", *, is_error: bool = False) -> httpx2.Response:
    return httpx2.Response(200, json={"content": content, "is_error": is_error})


def trouble(status: int, code: str, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json={"code": code, "detail": "secret-marker"}, headers=headers)


def garbled(status: int) -> httpx2.Response:
    headers = {"content-encoding": "gzip"}
    return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(b"secret-marker"))


class Server:
    """Answers from a list, the last one for ever; its time passes only in pauses."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []
        self.now = 0.0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(
            answer.status_code, stream=answer.stream, headers=answer.headers, request=request
        )

    def wait(self, is_over: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return is_over.is_set()

    def memory(self, **options: Any) -> GatewayMemory:
        return GatewayMemory(
            URL,
            options.pop("namespace", "alice@x"),
            options.pop("token", TOKEN),
            transport=httpx2.MockTransport(self),
            wait=options.pop("wait", self.wait),
            clock=lambda: self.now,
            **options,
        )

    @property
    def keys(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self.requests]


def test_a_command_is_sent_with_namespace_token_and_a_key_of_its_own() -> None:
    server = Server(good())
    memory = server.memory()
    assert memory.execute(CREATE) == "done"
    memory.execute(CREATE)
    first = server.requests[0]
    assert str(first.url) == f"{URL}/memory/command"
    assert first.headers["x-memory-namespace"] == "alice@x"
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert len(set(server.keys)) == 2


def test_a_default_namespace_and_no_token_are_left_to_the_gateway() -> None:
    server = Server(good())
    server.memory(namespace=None, token=None).execute(CREATE)
    headers = server.requests[0].headers
    assert "x-memory-namespace" not in headers
    assert "authorization" not in headers


@pytest.mark.parametrize(
    "failure",
    [
        httpx2.ConnectError("secret-marker"),
        httpx2.ReadError("secret-marker"),
        httpx2.ReadTimeout("secret-marker"),
        httpx2.RemoteProtocolError("secret-marker"),
        trouble(503, "at_capacity"),
        trouble(504, "timed_out"),
        trouble(504, "outcome_unknown"),
        httpx2.Response(503, html=HTML),
        httpx2.Response(504),
    ],
)
def test_what_may_pass_is_tried_again_under_the_same_key(
    failure: httpx2.Response | Exception,
) -> None:
    server = Server(failure, failure, failure, good())
    assert server.memory().execute(CREATE) == "done"
    assert len(server.requests) == 4
    assert len(set(server.keys)) == 1


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (trouble(400, "namespace_missing"), GatewayRefused),
        (trouble(401, "unauthorized"), GatewayRefused),
        (trouble(403, "host_refused"), GatewayRefused),
        (httpx2.Response(404, html=HTML), GatewayRefused),
        (httpx2.Response(302, headers={"location": "http://elsewhere.example"}), GatewayRefused),
        (trouble(422, "idempotency_key_reused"), GatewayRefused),
        (trouble(500, "internal"), OutcomeUnknown),
        (httpx2.Response(502, html=HTML), OutcomeUnknown),
        (httpx2.Response(200, html=HTML), OutcomeUnknown),
        (httpx2.Response(200), OutcomeUnknown),
        (httpx2.Response(200, json=[]), OutcomeUnknown),
        (httpx2.Response(200, json={"content": 5, "is_error": False}), OutcomeUnknown),
        (httpx2.Response(200, json={"content": "x"}), OutcomeUnknown),
        (httpx2.Response(200, content=b"\xff\xfe"), OutcomeUnknown),
        (httpx2.Response(200, content=b"[" * 200_000), OutcomeUnknown),
        (UnicodeError("a host name that is none"), Unavailable),
        (trouble(413, "body_too_large"), Refused),
        (good("The path is wrong.", is_error=True), Refused),
    ],
)
def test_what_will_not_pass_is_not_tried_again(
    answer: httpx2.Response | Exception, fault: type[MemoryFault]
) -> None:
    server = Server(answer)
    with pytest.raises(fault) as raised:
        server.memory().execute(CREATE)
    assert type(raised.value) is fault
    assert len(server.requests) == 1


def test_all_of_it_ends_within_the_total_time() -> None:
    server = Server(trouble(503, "at_capacity"))
    with pytest.raises(Unavailable):
        server.memory(total_seconds=20).execute(CREATE)
    assert 20 - 5 - 0.1 <= server.now < 20  # the longest pause, the shortest attempt
    assert len(server.requests) > 5


def test_the_gateways_word_on_when_to_come_again_is_kept() -> None:
    server = Server(trouble(503, "at_capacity", **{"retry-after": "7"}), good())
    server.memory().execute(CREATE)
    assert server.pauses == [7.0]
    server = Server(trouble(503, "at_capacity", **{"retry-after": "never"}), good())
    server.memory().execute(CREATE)
    assert server.pauses[0] <= 0.1


def test_pauses_grow_and_are_spread() -> None:
    most = [max(pause_seconds(attempt, 0) for _ in range(200)) for attempt in range(12)]
    assert most[0] <= 0.1
    assert 2.5 < most[-1] <= 5
    assert len({pause_seconds(3, 0) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    "later",
    [httpx2.ConnectError("down"), trouble(503, "at_capacity"), trouble(401, "unauthorized")],
)
def test_an_attempt_that_may_have_written_is_not_forgotten(
    later: httpx2.Response | Exception,
) -> None:
    with pytest.raises(OutcomeUnknown):
        Server(httpx2.ReadError("late"), later).memory().execute(CREATE)


def test_an_answer_settles_what_an_earlier_attempt_may_have_written() -> None:
    late = httpx2.ReadError("late")
    assert Server(late, good()).memory().execute(CREATE) == "done"
    with pytest.raises(Refused):
        Server(late, good("It exists.", is_error=True)).memory().execute(CREATE)


@pytest.mark.parametrize(
    "answers",
    [
        (httpx2.ReadTimeout("late"),),
        (httpx2.ReadError("late"), httpx2.ConnectError("down")),
        (httpx2.Response(200, html=HTML),),
        (garbled(200),),
    ],
)
def test_a_read_never_has_an_unknown_outcome(answers: tuple[httpx2.Response | Exception]) -> None:
    for call in (
        lambda: Server(*answers).memory().execute(VIEW),
        lambda: Server(*answers).memory().recall("x", 5),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert not isinstance(raised.value, OutcomeUnknown)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [(httpx2.ConnectError("down"), CLOSED), (httpx2.ReadError("late"), UNCONFIRMED)],
)
def test_a_call_ends_when_the_tool_is_closed_between_its_attempts(
    failure: Exception, sentence: str
) -> None:
    server = Server(failure)

    def wait(is_over: threading.Event, seconds: float) -> bool:
        tool.close()
        return server.wait(is_over, seconds)

    tool = HolographicMemoryToolSync(server.memory(wait=wait))
    with pytest.raises(ToolError) as raised:
        tool.call(CREATE)
    assert raised.value.content == sentence
    assert len(server.requests) == 1


def test_a_memory_that_was_closed_sends_nothing() -> None:
    server = Server(good())
    memory = server.memory()
    memory.close()
    memory.close()
    with pytest.raises(Unavailable) as raised:
        memory.execute(CREATE)
    assert type(raised.value) is Unavailable
    assert server.requests == []


def test_a_call_that_nobody_waits_for_any_longer_is_not_tried_again() -> None:
    server, left = Server(httpx2.ConnectError("down")), threading.Event()

    def wait(is_over: threading.Event, seconds: float) -> bool:
        left.set()
        return server.wait(is_over, seconds)

    def call() -> None:
        abandoned.set(left)
        with pytest.raises(Unavailable):
            server.memory(wait=wait).execute(CREATE)

    copy_context().run(call)
    assert len(server.requests) == 1


def test_what_consists_of_many_calls_ends_too_when_nobody_waits() -> None:
    left, commands = threading.Event(), []

    def answer(request: httpx2.Request) -> httpx2.Response:
        commands.append(json.loads(request.content)["command"])
        if commands[-1] == "delete":
            left.set()
        return good("4B\t/memories\n1B\t/memories/a\n1B\t/memories/b")

    tool = HolographicMemoryToolSync(
        GatewayMemory(URL, "n", None, transport=httpx2.MockTransport(answer))
    )

    def call() -> None:
        abandoned.set(left)
        with pytest.raises(ToolError):
            tool.clear_all_memory()

    copy_context().run(call)
    assert commands == ["view", "delete"]


ANSWER = b'{"content": "done", "is_error": false}'


class Trickle:
    """A server whose answer comes drop by drop, and is complete after half a minute."""

    def __init__(self, head: bytes, drop: bytes, rest: bytes) -> None:
        self._answer = (head, *[drop] * 300, rest)
        self._is_over = threading.Event()
        self._sent = 0
        self.client_has_gone = threading.Event()

    @property
    def is_complete(self) -> bool:
        return self._sent == len(self._answer)

    @contextmanager
    def served(self) -> Generator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=self._serve, args=(listener,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                self._is_over.set()
                thread.join()

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            try:
                for part in self._answer:
                    self._sent += 1
                    connection.sendall(part)
                    if self._is_over.wait(0.1):
                        return
            except OSError:
                self.client_has_gone.set()


@pytest.mark.parametrize(
    ("head", "drop", "rest"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b" ", ANSWER),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\nx: ", b"x", b"\r\n\r\n" + ANSWER),
    ],
)
def test_an_answer_that_trickles_does_not_hold_a_call(
    head: bytes, drop: bytes, rest: bytes
) -> None:
    server = Trickle(head, drop, rest)
    with server.served() as url:
        memory = GatewayMemory(url, "n", None, total_seconds=1)
        with pytest.raises(OutcomeUnknown):
            memory.execute(CREATE)
        assert not server.is_complete
        if drop == b" ":  # a body, which is given up between two chunks
            assert server.client_has_gone.wait(10)
        memory.close()


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    read = 0

    def chunks() -> Iterator[bytes]:
        nonlocal read
        for read in range(1, 101):  # noqa: B007 - counted for the test
            yield b" " * (1 << 20)
        yield ANSWER

    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=chunks()))
    with pytest.raises(OutcomeUnknown):
        GatewayMemory(URL, "n", None, transport=transport).execute(CREATE)
    assert read == 65


def test_recall_returns_typed_results() -> None:
    result = {
        "path": "/memories/a",
        "score": 1.0,
        "excerpt": "x",
        "start_line": 1,
        "end_line": 1,
        "lexical_score": 0.5,
    }
    answer = {"content": "found", "is_error": False, "results": [result]}
    (found,) = Server(httpx2.Response(200, json=answer)).memory().recall("x", 5)
    assert (found.path, found.excerpt, found.semantic_score) == ("/memories/a", "x", None)
    for wrong in (
        {},
        {"results": 5},
        {"results": [{"path": 1}]},
        {"results": [{**result, "excerpt": 5}]},
    ):
        body = {"content": "found", "is_error": False, **wrong}
        with pytest.raises(GatewayRefused):
            Server(httpx2.Response(200, json=body)).memory().recall("x", 5)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (httpx2.ConnectError("secret-marker"), UNREACHABLE),
        (httpx2.ReadTimeout("secret-marker"), UNCONFIRMED),
        (trouble(401, "unauthorized"), UNREACHABLE),
        (trouble(503, "at_capacity"), UNREACHABLE),
        (trouble(504, "outcome_unknown"), UNCONFIRMED),
        (trouble(504, "timed_out"), UNREACHABLE),
        (httpx2.Response(503, html=HTML), UNREACHABLE),
        (httpx2.Response(504, html=HTML), UNCONFIRMED),
        (httpx2.Response(502, html=HTML), UNCONFIRMED),
        (httpx2.Response(200, html=HTML), UNCONFIRMED),
        (httpx2.Response(200), UNCONFIRMED),
        (httpx2.Response(200, content=b"[" * 200_000), UNCONFIRMED),
        (garbled(200), UNCONFIRMED),
        (garbled(502), UNCONFIRMED),
        (UnicodeError("secret-marker"), UNREACHABLE),
        (RuntimeError("secret-marker"), UNCONFIRMED),
        (
            trouble(413, "body_too_large"),
            "The input is too large for the memory. Please split the content into several files.",
        ),
        (good("File /memories/a already exists", is_error=True), "File /memories/a already exists"),
    ],
)
def test_claude_is_told_one_short_sentence(
    answer: httpx2.Response | Exception, sentence: str
) -> None:
    tool = HolographicMemoryToolSync(Server(answer).memory(total_seconds=1))
    with pytest.raises(ToolError) as raised:
        tool.call(CREATE)
    assert raised.value.content == sentence


@pytest.mark.parametrize(
    ("url", "namespace", "token"),
    [
        ("memory:8080", "n", None),
        ("ftp://memory", "n", None),
        ("http://", "n", None),
        ("", "n", None),
        ("http://[::1", "n", None),
        (URL, "", None),
        (URL, "ü", None),
        (URL, "x" * 257, None),
        (URL, " n", None),
        (URL, "a\nb", None),
        (URL, "n", "two words"),
        (URL, "n", "line\nbreak"),
    ],
)
def test_options_that_can_be_none_are_an_error_at_once(
    url: str, namespace: str, token: str | None
) -> None:
    with pytest.raises(ValueError, match="`"):
        GatewayMemory(url, namespace, token)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_total_time_that_can_be_none_is_an_error_at_once(seconds: float) -> None:
    with pytest.raises(ValueError, match="`total_seconds`"):
        GatewayMemory(URL, "n", None, total_seconds=seconds)
