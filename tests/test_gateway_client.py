"""The client of the gateway: what it sends, what an answer means, when it tries again."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from anthropic.lib.tools import ToolError

from hms_memory_tool import HolographicMemoryToolSync
from hms_memory_tool.errors import MemoryFault, OutcomeUnknown, Refused, Unavailable
from hms_memory_tool.gateway import GatewayMemory, GatewayRefused, pause_seconds
from hms_memory_tool.tools import UNCONFIRMED, UNREACHABLE

URL, TOKEN = "http://memory.example:8080", "secret-marker-token"
CREATE = {"command": "create", "path": "/memories/a", "file_text": "x"}
VIEW = {"command": "view", "path": "/memories"}
Handler = Callable[[httpx2.Request], httpx2.Response]
HTML = "<html><head>Bad gateway at http://memory.example secret-marker</head></html>"


def good(content: str = "done", *, is_error: bool = False) -> httpx2.Response:
    return httpx2.Response(200, json={"content": content, "is_error": is_error})


def trouble(status: int, code: str, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json={"code": code, "detail": "secret-marker"}, headers=headers)


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
            answer.status_code, content=answer.content, headers=answer.headers, request=request
        )

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def memory(self, **options: Any) -> GatewayMemory:
        return GatewayMemory(
            URL,
            options.pop("namespace", "alice@x"),
            options.pop("token", TOKEN),
            transport=httpx2.MockTransport(self),
            sleep=self.sleep,
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
        (trouble(500, "internal"), GatewayRefused),
        (httpx2.Response(502, html=HTML), GatewayRefused),
        (httpx2.Response(200, html=HTML), GatewayRefused),
        (httpx2.Response(200), GatewayRefused),
        (httpx2.Response(200, json=[]), GatewayRefused),
        (httpx2.Response(200, json={"content": 5, "is_error": False}), GatewayRefused),
        (httpx2.Response(200, json={"content": "x"}), GatewayRefused),
        (httpx2.Response(200, content=b"\xff\xfe"), GatewayRefused),
        (trouble(413, "body_too_large"), Refused),
        (good("The path is wrong.", is_error=True), Refused),
    ],
)
def test_what_will_not_pass_is_not_tried_again(
    answer: httpx2.Response, fault: type[MemoryFault]
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
    assert 15 < server.now < 20
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


def test_a_read_never_has_an_unknown_outcome() -> None:
    server = Server(httpx2.ReadTimeout("late"))
    for call in (
        lambda: server.memory(total_seconds=1).execute(VIEW),
        lambda: server.memory(total_seconds=1).recall("x", 5),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert not isinstance(raised.value, OutcomeUnknown)


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
    for wrong in ({}, {"results": [{"path": 1}]}, {"results": 5}):
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
        (httpx2.Response(502, html=HTML), UNREACHABLE),
        (httpx2.Response(200, html=HTML), UNREACHABLE),
        (httpx2.Response(200), UNREACHABLE),
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
