"""What is measured, for Prometheus: `GET /metrics`.

Each application has a registry of its own. Every label takes its values from a list in the code,
and every series is there from the start: what callers send never adds one, and `rate` works from
the first event on. Nothing is kept for a namespace.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from hms_memory_tool.commands import COMMAND_NAMES
from hms_memory_tool.errors import Contended, KeyReused, MemoryFault, Refused, Unavailable
from hms_memory_tool.store import ToolFailed

from .collectors import DataDir
from .problems import STATUS, InternalFault

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
OTHER = "other"
INVALID = "invalid"
RECALL = "recall"

OK, CANCELLED, INTERNAL = "ok", "cancelled", InternalFault.code
_FAILED = sorted(fault.code for fault in STATUS if issubclass(fault, Unavailable))
COMMAND_OUTCOMES = (
    *(OK, Refused.code, Contended.code, KeyReused.code),
    *(*_FAILED, INTERNAL, CANCELLED),
)
COMPACTION_OUTCOMES = (OK, *_FAILED, INTERNAL)
TOOLS = ("forget", "get", "list", "recall", "remember", "stats")
# Those of hms-mcp, and what the call itself can end in.
CALL_OUTCOMES = (
    *(OK, "already_exists", "forbidden", "invalid_argument", "not_found", "store_locked"),
    *("store_unavailable", "too_large", "too_many", "too_many_stores", "version_conflict"),
    *("connection_lost", "engine_fault", "not_connected", "timed_out", INTERNAL, CANCELLED),
)
_STATUSES = ("200", *sorted({str(status.value) for status in STATUS.values()}), OTHER)

Routes = Mapping[str, Iterable[str]]
"""The methods of each route, by its template."""


def outcome(error: BaseException | None, known: Sequence[str]) -> str:
    """How a piece of work ended, as one of the known outcomes."""
    if error is None:
        return OK
    if not isinstance(error, Exception):
        return CANCELLED
    code = error.code if isinstance(error, (MemoryFault, ToolFailed)) else INTERNAL
    return code if code in known else INTERNAL


class Metrics:
    """The figures of one gateway.

    Args:
        engine_version: of the hms-mcp behind it, where that is known.
        data_dir: the folder that holds the stores, if they are the gateway's own.
    """

    def __init__(self, *, engine_version: str = "unknown", data_dir: Path | None = None) -> None:
        self._registry = CollectorRegistry()
        self._routes: dict[str, frozenset[str]] = {}
        self._response = self._counter(
            "http_responses", "Answers, by route, method and status.", "route", "method", "status"
        )
        self._responses: dict[tuple[str, str, str], Counter] = {}
        self.expect({OTHER: ()})
        self._bytes_in = self._counter("http_request_bytes", "Bytes of request bodies.")
        self._bytes_out = self._counter("http_response_bytes", "Bytes of answers' bodies.")
        self.in_flight = Gauge(
            "hms_gateway_http_requests_in_flight", "Requests under way.", registry=self._registry
        )
        commands = self._counter(
            "commands", "Commands that were run, by how they ended.", "command", "outcome"
        )
        seconds = self._histogram("command", "Time that commands took.", "command")
        self._commands = {
            (command, ended): commands.labels(command, ended)
            for command in (*COMMAND_NAMES, RECALL)
            for ended in COMMAND_OUTCOMES
        }
        self._commands[INVALID, Refused.code] = commands.labels(INVALID, Refused.code)
        self._command_seconds = {
            command: seconds.labels(command) for command in (*COMMAND_NAMES, RECALL)
        }
        self.retries = self._counter(
            "command_retries", "Times that a command was run again, its engine having gone."
        )
        self._conflicts = self._counter(
            "edit_conflicts", "Writes that were not made, somebody else having come first."
        )
        calls = self._counter(
            "engine_calls", "Calls of the engine's tools, by how they ended.", "tool", "outcome"
        )
        call_seconds = self._histogram("engine_call", "Time that calls of the engine took.", "tool")
        self._calls = {
            (tool, ended): calls.labels(tool, ended) for tool in TOOLS for ended in CALL_OUTCOMES
        }
        self._call_seconds = {tool: call_seconds.labels(tool) for tool in TOOLS}
        self.wait_seconds = self._histogram(
            "pool_wait", "Time that requests waited for a connection that was not open."
        )
        self.open_seconds = self._histogram("pool_open", "Time that it took to open stores.")
        compactions = self._counter(
            "compactions", "Stores that were compacted or should have been, by outcome.", "outcome"
        )
        self._compactions = {one: compactions.labels(one) for one in COMPACTION_OUTCOMES}
        self._compaction_seconds = self._histogram("compaction", "Time that compactions took.")
        self._compaction_waits = self._histogram(
            "compaction_wait", "Longest time that commands can have waited for a compaction."
        )
        self.ready = Gauge(
            "hms_gateway_ready", "1 while /readyz says so, else 0.", registry=self._registry
        )
        Info(
            "hms_gateway_build", "The versions of gateway and engine.", registry=self._registry
        ).info({"version": version("hms-memory-gateway"), "engine_version": engine_version})
        if data_dir is not None:
            self._registry.register(DataDir(data_dir))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    @contextmanager
    def watching(self, collector: Collector) -> Generator[None]:
        """Add figures that are somebody else's to count, while they are counted."""
        self._registry.register(collector)
        try:
            yield
        finally:
            self._registry.unregister(collector)

    def expect(self, routes: Routes) -> None:
        """Name the routes that requests are counted for; all others are one."""
        for route, methods in routes.items():
            self._routes[route] = frozenset(methods)
            for method in (*methods, OTHER):
                for status in _STATUSES:
                    labels = (route, method, status)
                    self._responses[labels] = self._response.labels(*labels)

    def known(self, route: str, method: str) -> tuple[str, str]:
        """The route and the method as labels."""
        methods = self._routes.get(route)
        if methods is None:
            return OTHER, OTHER
        return route, method if method in methods else OTHER

    def responded(
        self, route: str, method: str, status: int | None, bytes_in: int, bytes_out: int
    ) -> None:
        """Count an answer; route and method are those of `known`."""
        code = str(status)
        self._responses[route, method, code if code in _STATUSES else OTHER].inc()
        self._bytes_in.inc(bytes_in)
        self._bytes_out.inc(bytes_out)

    def ran(self, command: str, ended: str, seconds: float) -> None:
        """Count a command, by one of `COMMAND_OUTCOMES`."""
        self._commands[command, ended].inc()
        self._command_seconds[command].observe(seconds)

    def refused(self) -> None:
        """Count an input that is no command."""
        self._commands[INVALID, Refused.code].inc()

    def called(self, tool: str, ended: str, seconds: float) -> None:
        """Count a call of the engine, by one of `CALL_OUTCOMES`."""
        self._calls[tool, ended].inc()
        self._call_seconds[tool].observe(seconds)
        if ended == "version_conflict":
            self._conflicts.inc()

    def compacted(self, ended: str, seconds: float, wait_seconds: float | None) -> None:
        """Count a compaction, by one of `COMPACTION_OUTCOMES`."""
        self._compactions[ended].inc()
        self._compaction_seconds.observe(seconds)
        if wait_seconds is not None:
            self._compaction_waits.observe(wait_seconds)

    def collect(self) -> Iterable[Metric]:
        """All figures as they are now; without the times at which counting began, which would be
        as many series again.
        """
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text of all figures, and its media type: OpenMetrics for whoever accepts it."""
        encode, media_type = choose_encoder(accept)
        return encode(self), media_type

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hms_gateway_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"hms_gateway_{name}_duration_seconds",
            text,
            labels,
            buckets=BUCKETS,
            registry=self._registry,
        )
