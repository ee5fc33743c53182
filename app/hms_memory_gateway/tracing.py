"""Traces: what the gateway marks as a span, and nothing as long as nobody receives them.

`otel` has the spans of OpenTelemetry. It is imported only when the environment names a receiver.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from .settings import VariableInvalid

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# The one for traces alone wins.
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


class Span:
    """A piece of work in a trace; this one is in none."""

    trace_id: str | None = None

    def answered(self, route: str, method: str, status: int | None) -> None:
        """Note how a request was answered."""

    def found(self, count: int) -> None:
        """Note how many memories a search has found."""

    def ended(self, outcome: str) -> None:
        """Note how the work ended."""


_NO_SPAN = nullcontext(Span())


class Tracing:
    """Begins spans; this one begins none."""

    def request(self, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Span]:
        """A request, in the trace that its header `traceparent` names, or in a new one."""
        return _NO_SPAN

    def command(self, command: str, namespace: str) -> AbstractContextManager[Span]:
        """A command, or a recall."""
        return _NO_SPAN

    def waiting(self) -> AbstractContextManager[Span]:
        """The wait for a connection."""
        return _NO_SPAN

    def call(self, tool: str) -> AbstractContextManager[Span]:
        """A call of the engine."""
        return _NO_SPAN

    def opening(self, namespace: str) -> AbstractContextManager[Span]:
        """The opening of a store; a trace of its own, since many requests may wait for it."""
        return _NO_SPAN

    def close(self) -> None:
        """Send what is left."""


def configured(environ: Mapping[str, str]) -> Tracing:
    """The tracing that the environment asks for, by OpenTelemetry's own variables.

    Raises:
        VariableInvalid: one of them has a value that it cannot have.
    """
    if not _has_receiver(environ):
        return Tracing()
    try:
        from .otel import OpenTelemetry, exporting

        tracing = OpenTelemetry(exporting(environ))
    except ImportError:
        logger.warning(
            "traces are asked for by an OTEL_ variable, but the packages are not there that send "
            "them: install hms-memory-gateway[otel]"
        )
        return Tracing()
    # some are read on import already; a component that one names and nobody has is a RuntimeError
    except (ValueError, RuntimeError) as error:
        names = ", ".join(name for name in sorted(environ) if name.startswith("OTEL_"))
        reason = str(error).rstrip(".")
        raise VariableInvalid(
            f"Traces cannot be sent: {reason}. Correct one of {names}."
        ) from error
    protocol = next((name for name in _PROTOCOLS if environ.get(name)), None)
    if protocol is not None and environ[protocol] != _PROTOCOL:
        logger.warning(
            "%s is %s, and traces are sent by %s all the same: no other is there",
            protocol,
            environ[protocol],
            _PROTOCOL,
        )
    return tracing


def _has_receiver(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER")
    if exporter:
        return exporter == "otlp"
    return any(environ.get(name) for name in _ENDPOINTS)
