"""The client of the gateway: what an agent's process needs, and nothing heavier than the SDK.

`request` and `outcome` decide what is sent and what an answer means; `GatewayMemory` sends. A
command carries an idempotency key, so sending it again after a failure never does it twice.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2

from .errors import MemoryFault, OutcomeUnknown, Refused, Unavailable
from .results import Recalled

logger = logging.getLogger(__name__)

TOTAL_SECONDS = 60.0
_ATTEMPT_SECONDS = 30.0  # the gateway's own deadlines are shorter
_FIRST_PAUSE_SECONDS = 0.1
_LAST_PAUSE_SECONDS = 5.0
_RETRIED = frozenset({503, 504})


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


def outcome(response: httpx2.Response) -> Outcome:
    """Say what an answer means. Never raises, whatever a proxy on the way has made of it."""
    body = _object(response)
    if response.status_code == 200 and _is_answer(body):
        return Outcome(body, Refused(body["content"]) if body["is_error"] else None)
    code = body.get("code")
    logger.warning("the memory gateway answered %d (%s)", response.status_code, code)
    if response.status_code in _RETRIED:
        unknown = code == OutcomeUnknown.code
        fault = OutcomeUnknown("no confirmation") if unknown else Unavailable("no answer")
        return Outcome(fault=fault, may_retry=True, retry_seconds=_retry_after(response))
    if response.status_code == 413:
        return Outcome(
            fault=Refused(
                "The input is too large for the memory. "
                "Please split the content into several files."
            )
        )
    return Outcome(fault=GatewayRefused(f"status {response.status_code}"))


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
        sleep: waits between attempts.
        clock: seconds that only go forwards.

    Raises:
        ValueError: the address or the namespace can be none.
    """

    def __init__(
        self,
        url: str,
        namespace: str | None,
        token: str | None,
        *,
        total_seconds: float = TOTAL_SECONDS,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
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
        self._total_seconds = total_seconds
        self._sleep = sleep
        self._clock = clock
        # A proxy that the environment names for the internet has no way to this machine.
        is_local = host in ("localhost", "127.0.0.1", "::1")
        self._http = httpx2.Client(
            base_url=url, headers=headers, transport=transport, trust_env=not is_local
        )

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
            return [Recalled(**result) for result in body["results"]]
        except OutcomeUnknown as fault:
            raise Unavailable("no answer") from fault
        except (KeyError, TypeError) as error:
            raise GatewayRefused("an answer of another shape") from error

    def open(self) -> None:
        """Nothing to do: connections are opened when they are needed."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(
        self, route: str, given: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        # In ASCII: half of a surrogate pair gets to the gateway, which names the field.
        content = json.dumps(given).encode()
        deadline = self._clock() + self._total_seconds
        attempt = 0
        while True:
            last = self._attempt(route, content, headers, deadline - self._clock())
            pause = pause_seconds(attempt, last.retry_seconds)
            if last.fault and (not last.may_retry or self._clock() + pause >= deadline):
                raise last.fault
            if last.body is not None:
                return last.body
            self._sleep(pause)
            attempt += 1

    def _attempt(
        self, route: str, content: bytes, headers: Mapping[str, str], seconds: float
    ) -> Outcome:
        try:
            response = self._http.post(
                route, content=content, headers=headers, timeout=min(seconds, _ATTEMPT_SECONDS)
            )
        except httpx2.TransportError as error:
            logger.warning("the memory gateway cannot be reached (%s)", type(error).__name__)
            return Outcome(fault=_unreached(error), may_retry=True)
        return outcome(response)


def _unreached(error: httpx2.TransportError) -> Unavailable:
    """Whether the request can have arrived."""
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    return Unavailable("not reached") if never_sent else OutcomeUnknown("no answer")


def _object(response: httpx2.Response) -> Mapping[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _is_answer(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("content"), str) and isinstance(body.get("is_error"), bool)


def _retry_after(response: httpx2.Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value[:4]) if value.isdecimal() else 0.0


def _host(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("`gateway` has to be an address such as http://127.0.0.1:8080")
    return parts.hostname


def _checked(namespace: str) -> str:
    if not (namespace.isascii() and namespace.isprintable() and 1 <= len(namespace) <= 256):
        raise ValueError("`namespace` has to be 1 to 256 printable ASCII characters")
    if namespace != namespace.strip():
        raise ValueError("`namespace` must not begin or end with a space")
    return namespace
