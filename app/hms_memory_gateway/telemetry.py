"""How the gateway's work is measured, traced and logged: a context for each kind of it."""

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from hms_memory_tool.store import Call

from . import logs
from .compaction import Compacted
from .connection import Connect, Memory
from .exchange import Exchange
from .metrics import (
    CALL_OUTCOMES,
    COMMAND_OUTCOMES,
    COMPACTION_OUTCOMES,
    OK,
    Metrics,
    outcome,
)
from .tracing import Span, Tracing

logger = logging.getLogger(__name__)

# Asked for every few seconds by a machine: their lines are for whoever asks for all of them.
_PROBES = {"/healthz", "/readyz", "/metrics"}


class Telemetry:
    """What is known of one gateway from outside.

    Args:
        metrics: counts and measures.
        tracing: begins spans; without it there are none.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self._tracing = tracing or Tracing()

    @contextmanager
    def request(self, exchange: Exchange, headers: Mapping[bytes, bytes]) -> Generator[None]:
        """A request, from its head to the last byte of its answer."""
        started = perf_counter()
        with (
            self.metrics.in_flight.track_inprogress(),
            self._tracing.request(headers) as span,
            logs.about(**_ids(exchange, span)),
        ):
            try:
                yield
            finally:
                self._answered(exchange, span, perf_counter() - started)

    def command(self, command: str, namespace: str) -> AbstractContextManager[Span]:
        """A command or a recall that has been understood."""
        span = self._tracing.command(command, namespace)
        return _work(span, COMMAND_OUTCOMES, partial(self.metrics.ran, command))

    @contextmanager
    def waiting(self) -> Generator[None]:
        """The wait for a connection; what becomes of it is for the command to say."""
        started = perf_counter()
        with self._tracing.waiting():
            try:
                yield
            finally:
                self.metrics.wait_seconds.observe(perf_counter() - started)

    def opening(self, connect: Connect) -> Connect:
        """The same, measured until the store is open."""

        def opened(ended: str, seconds: float) -> None:
            if ended == OK:
                self.metrics.open_seconds.observe(seconds)

        @asynccontextmanager
        async def opening(namespace: str) -> AsyncGenerator[Memory]:
            async with AsyncExitStack() as stack:
                with _work(self._tracing.opening(namespace), COMMAND_OUTCOMES, opened):
                    memory = await stack.enter_async_context(connect(namespace))
                yield memory

        return opening

    def calls(self, call: Call) -> Call:
        """The same, each call measured."""

        async def called(tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
            with _work(self._tracing.call(tool), CALL_OUTCOMES, partial(self.metrics.called, tool)):
                return await call(tool, arguments)

        return called

    def compacted(self, came_to: Compacted | Exception, seconds: float) -> None:
        """A compaction, and what came of it."""
        if isinstance(came_to, Compacted):
            self.metrics.compacted(OK, seconds, came_to.wait_seconds)
        else:
            self.metrics.compacted(outcome(came_to, COMPACTION_OUTCOMES), seconds, None)

    def close(self) -> None:
        """Send what has not been sent."""
        self._tracing.close()

    def _answered(self, exchange: Exchange, span: Span, seconds: float) -> None:
        route, method = self.metrics.known(exchange.route, exchange.scope["method"])
        status, bytes_in, bytes_out = exchange.status, exchange.bytes_in, exchange.bytes_out
        self.metrics.responded(route, method, status, bytes_in, bytes_out)
        span.answered(route, method, status)
        level = logging.DEBUG if route in _PROBES else logging.INFO
        if logger.isEnabledFor(level):
            fields = {
                "method": method,
                "route": route,
                "status": status,
                "code": exchange.code,
                "ms": round(seconds * 1_000, 1),
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
            }
            text = "%s %s %s in %.1f ms, %d bytes in, %d bytes out"
            values = (method, route, exchange.code or status, seconds * 1_000, bytes_in, bytes_out)
            logger.log(level, text, *values, extra=fields)


@contextmanager
def _work(
    beginning: AbstractContextManager[Span],
    outcomes: Sequence[str],
    count: Callable[[str, float], None],
) -> Generator[Span]:
    started = perf_counter()
    error: BaseException | None = None
    with beginning as span:
        try:
            yield span
        except BaseException as raised:
            error = raised
            raise
        finally:
            ended = outcome(error, outcomes)
            span.ended(ended)
            count(ended, perf_counter() - started)


def _ids(exchange: Exchange, span: Span) -> dict[str, str]:
    ids = {"request_id": exchange.request_id}
    if span.trace_id is not None:
        ids["trace_id"] = span.trace_id
    return ids
