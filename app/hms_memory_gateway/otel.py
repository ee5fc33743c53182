"""Spans of OpenTelemetry, named as the conventions for generative AI and MCP name them.

They hold no memory text, query, path or namespace: a store is the hash that it has in the log.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .namespaces import for_log
from .tracing import Span, Tracing

_NAME = "hms-memory-gateway"
_CLOSE_SECONDS = 3.0  # for what has not been sent
# Of the conventions' own operations none is for reading a memory by its name.
OPERATIONS = {
    "view": "read_memory",
    "create": "create_memory",
    "str_replace": "update_memory",
    "insert": "update_memory",
    "rename": "update_memory",
    "delete": "delete_memory",
    "recall": "search_memory",
}
# Ends that are answers: Claude, or the command that asked, knows what to do with them.
_ANSWERS = {"ok", "refused", "contended", "already_exists", "not_found", "version_conflict"}
_PROPAGATED = ("traceparent", "tracestate")
_NUMBERS = (
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_EXPORT_TIMEOUT",
)


class _Span(Span):
    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self.trace_id = format_trace_id(span.get_span_context().trace_id)

    def answered(self, route: str, method: str, status: int | None) -> None:
        self._span.update_name(f"{method} {route}")
        self._span.set_attribute("http.request.method", "_OTHER" if method == "other" else method)
        self._span.set_attribute("http.route", route)
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if status is None or status >= 500:
            self._fail(str(status or "disconnected"))

    def found(self, count: int) -> None:
        self._span.set_attribute("gen_ai.memory.record.count", count)

    def ended(self, outcome: str) -> None:
        self._span.set_attribute("hms_gateway.outcome", outcome)
        if outcome not in _ANSWERS:
            self._fail(outcome)

    def _fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


class OpenTelemetry(Tracing):
    """Begins spans of OpenTelemetry.

    Args:
        provider: where they go; it is closed with this.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_NAME, version(_NAME))
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, headers: Mapping[bytes, bytes]) -> Generator[Span]:
        carrier = {name: headers.get(name.encode(), b"").decode("latin-1") for name in _PROPAGATED}
        context = self._propagator.extract(carrier, Context())
        with self._span("request", SpanKind.SERVER, {}, context) as span:
            yield span

    @contextmanager
    def command(self, command: str, namespace: str) -> Generator[Span]:
        operation = OPERATIONS[command]
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.memory.store.id": for_log(namespace),
            "hms_gateway.command": command,
        }
        with self._span(operation, SpanKind.INTERNAL, attributes) as span:
            yield span

    @contextmanager
    def waiting(self) -> Generator[Span]:
        with self._span("wait for connection", SpanKind.INTERNAL, {}) as span:
            yield span

    @contextmanager
    def call(self, tool: str) -> Generator[Span]:
        attributes = {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
        }
        with self._span(f"tools/call {tool}", SpanKind.CLIENT, attributes) as span:
            yield span

    @contextmanager
    def opening(self, namespace: str) -> Generator[Span]:
        attributes = {"gen_ai.memory.store.id": for_log(namespace)}
        with self._span("open store", SpanKind.INTERNAL, attributes) as span:
            yield span

    def close(self) -> None:
        # Where no receiver answers, the exporter tries for longer than a shutdown can take.
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, str],
        context: Context | None = None,
    ) -> Generator[Span]:
        # The text of an exception could hold a user's.
        with self._tracer.start_as_current_span(
            name,
            context,
            kind,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _Span(span)


def exporting(environ: Mapping[str, str]) -> TracerProvider:
    """A provider that sends spans by OTLP over HTTP, in batches, from a thread of its own.

    Args:
        environ: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` name the gateway otherwise; the
            SDK reads the receiver, its headers and the sampler from the environment itself.

    Raises:
        ValueError, RuntimeError: a value there can be none.
    """
    for name in _NUMBERS:  # the SDK logs a traceback, and goes on with its own
        try:
            int(environ.get(name) or 0)
        except ValueError:
            raise ValueError(f"{name} is no whole number") from None
    resource = Resource.create({"service.name": _NAME, "service.version": version(_NAME)})
    if "OTEL_SERVICE_NAME" in environ or "OTEL_RESOURCE_ATTRIBUTES" in environ:
        resource = resource.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
