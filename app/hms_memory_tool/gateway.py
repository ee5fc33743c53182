"""The client of the gateway: what an agent's process needs, and nothing heavier than the SDK.

`outcome` decides what an answer means; `GatewayMemory` sends. A command carries an idempotency key,
so sending it again after a failure never does it twice.
"""

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import httpx2
from pydantic import TypeAdapter, ValidationError

from .errors import MemoryFault, OutcomeUnknown, Refused, TimedOut, Unavailable
from .results import Recalled

logger = logging.getLogger(__name__)

TOTAL_SECONDS = 60.0
_ATTEMPT_SECONDS = 30.0  # the gateway's own deadlines are shorter
_CONNECT_SECONDS = 5.0
_LEAST_SECONDS = 0.1  # with less left, an attempt would end before it has begun
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 5.0
_RETRIED = frozenset({503, 504})
_MAX_ANSWER_BYTES = 64 << 20
_NEVER_SENT = (  # a name that is none is a UnicodeError
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    UnicodeError,
)
_RESULTS = TypeAdapter(list[Recalled])

# Set once nobody waits for the call any longer: a call's own, so it goes with the context.
abandoned: ContextVar[threading.Event] = ContextVar("abandoned")


class GatewayRefused(Unavailable):
    """The gateway does not serve this client: token, namespace or address are wrong."""

    code = "gateway_refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt led to: a body, or a fault and whether another attempt may help."""

    body: Mapping[str, Any] | None = None
    fault: MemoryFault | None = None
    may_retry: bool = False
    retry_seconds: float = 0.0


def outcome(status: int, headers: Mapping[str, str], content: bytes) -> Outcome:
    """Say what an answer means. Never raises, whatever a proxy on the way has made of it."""
    body = _object(content)
    if status == 200 and _is_answer(body):
        return Outcome(body, Refused(body["content"]) if body["is_error"] else None)
    code = body.get("code")
    logger.warning("the memory gateway answered %d (%s)", status, code)
    if status in _RETRIED:
        fault = _fault(status, code, Unavailable)
        return Outcome(fault=fault, may_retry=True, retry_seconds=_retry_after(headers))
    if status == 413:
        return Outcome(
            fault=Refused(
                "The input is too large for the memory. "
                "Please split the content into several files."
            )
        )
    return Outcome(fault=_fault(status, code, GatewayRefused))


def pause_seconds(attempt: int, least: float) -> float:
    """How long to wait after an attempt (from 0): exponential, with full jitter."""
    most = min(_FIRST_PAUSE_SECONDS * 2.0**attempt, _LAST_PAUSE_SECONDS)
    return max(random.uniform(0, most), least)  # noqa: S311 - to spread, not to hide


class GatewayMemory:
    """One namespace of a gateway, from any thread.

    Args:
        url: the gateway's address, such as `http://127.0.0.1:8080`.
        namespace: whose memory; None leaves it to the gateway's default, if it has one.
        token: the gateway's token, if it asks for one.
        total_seconds: the longest that a call may take, retries included.
        transport: the HTTP transport, for tests.
        wait: waits between attempts, but no longer than until the event is set; says if it is.
        clock: seconds that only go forwards.

    Raises:
        ValueError: an option can be none.
    """

    def __init__(
        self,
        url: str,
        namespace: str | None,
        token: str | None,
        *,
        total_seconds: float = TOTAL_SECONDS,
        transport: httpx2.BaseTransport | None = None,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        host = _host(url)
        headers = {"Content-Type": "application/json"}
        if namespace is not None:
            headers["X-Memory-Namespace"] = _checked(namespace)
        if token is not None:
            if not (token.isascii() and token.isprintable() and " " not in token):
                raise ValueError("`token` has to be printable ASCII without spaces")
            headers["Authorization"] = f"Bearer {token}"
        if not 0 < total_seconds < float("inf"):
            raise ValueError("`total_seconds` has to be a number above 0")
        self._total_seconds = total_seconds
        self._wait = wait
        self._clock = clock
        self._closed = threading.Event()
        # A proxy that the environment names for the internet has no way to this machine.
        trust_env = host not in ("localhost", "127.0.0.1", "::1")
        self._connect = partial(
            httpx2.Client, base_url=url, headers=headers, transport=transport, trust_env=trust_env
        )
        self._clients = {os.getpid(): self._connect()}

    def execute(self, given: Mapping[str, Any]) -> str:
        """Run a memory command, once, and return its text.

        Raises:
            Refused: Claude can mend it.
            OutcomeUnknown: it may have been done.
            Unavailable: there was no answer in time, or the gateway does not serve us.
        """
        try:
            answer = self._send("/memory/command", given, {"Idempotency-Key": str(uuid4())})
        except OutcomeUnknown as fault:
            if given.get("command") == "view":
                raise Unavailable("no answer") from fault
            raise
        content: str = answer["content"]
        return content

    def recall(self, query: str, k: int) -> list[Recalled]:
        """The files most relevant to a query, best first.

        Raises:
            Refused: the query or `k` can be none.
            Unavailable: there was no answer in time, or the gateway does not serve us.
        """
        try:
            body = self._send("/memory/recall", {"query": query, "k": k}, {})
            return _RESULTS.validate_python(body.get("results"))
        except OutcomeUnknown as fault:
            raise Unavailable("no answer") from fault
        except ValidationError as error:
            raise GatewayRefused("an answer of another shape") from error

    def open(self) -> None:
        """Nothing to do: connections are opened when they are needed."""

    def close(self) -> None:
        """Close the connections; calls that are under way end without another attempt."""
        self._closed.set()
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _send(
        self, route: str, given: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        # In ASCII: half of a surrogate pair gets to the gateway, which names the field.
        post = partial(self._post, route, json.dumps(given).encode(), headers)
        deadline = self._clock() + self._total_seconds
        is_over = abandoned.get(self._closed)
        may_have_run = False
        for attempt in count():
            last = _within(min(deadline - self._clock(), _ATTEMPT_SECONDS), post)
            if last.body is not None and last.fault is None:
                return last.body
            may_have_run |= isinstance(last.fault, OutcomeUnknown)
            pause = pause_seconds(attempt, last.retry_seconds)
            is_late = self._clock() + pause + _LEAST_SECONDS >= deadline
            if not last.may_retry or is_late or self._wait(is_over, pause):
                break
        if may_have_run and not isinstance(last.fault, Refused):
            raise OutcomeUnknown("no confirmation") from last.fault
        raise last.fault or Unavailable("no answer")

    def _post(
        self, route: str, content: bytes, headers: Mapping[str, str], seconds: float
    ) -> Outcome:
        """Send once. Never raises an `Exception`."""
        if self._closed.is_set():
            return Outcome(fault=Unavailable("closed"))
        connect_seconds = min(seconds / 2, _CONNECT_SECONDS)
        limits = httpx2.Timeout(seconds, connect=connect_seconds, pool=connect_seconds)
        until = self._clock() + seconds
        try:
            with self._client().stream(
                "POST", route, content=content, headers=headers, timeout=limits
            ) as response:
                answer = self._read(response, until)
        except Exception as error:  # noqa: BLE001 - httpx2 lets pass what sockets and codecs raise
            logger.warning("the memory gateway cannot be reached (%s)", type(error).__name__)
            never_sent = isinstance(error, _NEVER_SENT)
            fault = Unavailable("not reached") if never_sent else OutcomeUnknown("no answer")
            return Outcome(fault=fault, may_retry=isinstance(error, httpx2.RequestError))
        return outcome(response.status_code, response.headers, answer)

    def _read(self, response: httpx2.Response, until: float) -> bytes:
        """The body of an answer; nothing, which is no answer, instead of one without end."""
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if self._clock() > until:
                raise httpx2.ReadTimeout("the answer trickles")
            if len(content) > _MAX_ANSWER_BYTES:
                return b""
        return bytes(content)

    def _client(self) -> httpx2.Client:
        """This process's own: a fork that shared the sockets would get another's answers."""
        process = os.getpid()
        if process not in self._clients:
            self._clients[process] = self._connect()
        return self._clients[process]


def _within(seconds: float, post: Callable[[float], Outcome]) -> Outcome:
    """Make an attempt in a thread: a name's look-up has no time-out, and httpx2's are per read."""
    answer: Future[Outcome] = Future()

    def work() -> None:
        answer.set_result(post(seconds))

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        return Outcome(fault=OutcomeUnknown("no answer in time"), may_retry=True)


def _fault(status: int, code: object, otherwise: type[Unavailable]) -> Unavailable:
    """What an answer that is none leaves of the command: a proxy's may stand for one that ran."""
    may_have_run = status == 200 or (status >= 500 and status != 503 and code != TimedOut.code)
    return (OutcomeUnknown if may_have_run else otherwise)(f"status {status}")


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _is_answer(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("content"), str) and isinstance(body.get("is_error"), bool)


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after", "")
    return float(value[:4]) if value.isdecimal() else 0.0


def _host(url: str) -> str:
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        parts = httpx2.URL()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError("`gateway` has to be an address such as http://127.0.0.1:8080")
    return parts.host


def _checked(namespace: str) -> str:
    if not (namespace.isascii() and namespace.isprintable() and 1 <= len(namespace) <= 256):
        raise ValueError("`namespace` has to be 1 to 256 printable ASCII characters")
    if namespace != namespace.strip():
        raise ValueError("`namespace` must not begin or end with a space")
    return namespace
