"""Traces: one tree from the caller's `traceparent` to the call of the engine; else nothing."""

import json
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.metrics import RECALL
from hms_memory_gateway.namespaces import for_log
from hms_memory_gateway.otel import OPERATIONS, OpenTelemetry
from hms_memory_gateway.tracing import Tracing, configured
from hms_memory_tool.commands import COMMAND_NAMES

from .conftest import Gateway, Serve, until
from .test_cli import environment, run

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


class Traced:
    """A gateway, and the spans that have ended in it."""

    def __init__(self, gateway: Gateway, exporter: InMemorySpanExporter) -> None:
        self.gateway = gateway
        self._exporter = exporter

    def post(self, route: str, body: object, **headers: str) -> int:
        """Send a request of the namespace `zebra-1`, return its status."""
        headers = {"X-Memory-Namespace": "zebra-1", **headers}
        return self.gateway.http.post(route, json=body, headers=headers).status_code

    def spans(self) -> list[ReadableSpan]:
        """All but those of the openings."""
        self.gateway.http.get("/healthz")  # the answer comes before the end of its span
        ended = self._exporter.get_finished_spans()
        own = {one.context.trace_id for one in ended if one.name == "open store"}
        return [
            one for one in ended if one.context.trace_id not in own and one.name != "GET /healthz"
        ]


@pytest.fixture
def traced(serve: Serve) -> Iterator[Traced]:
    """A gateway whose spans are kept."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with serve(tracing=OpenTelemetry(provider)) as gateway:
        yield Traced(gateway, exporter)


def below(spans: list[ReadableSpan], parent: int) -> dict[str, int]:
    """The spans directly below another: name and id."""
    return {
        one.name: one.context.span_id
        for one in spans
        if one.parent is not None and one.parent.span_id == parent
    }


def test_a_traceparent_ends_as_one_tree(traced: Traced) -> None:
    create = {"command": "create", "path": "/memories/zebra", "file_text": "zebra"}
    assert traced.post("/memory/command", create, **TRACEPARENT) == 200
    spans = traced.spans()
    assert {f"{one.context.trace_id:032x}" for one in spans} == {TRACE}
    (server,) = below(spans, int(CALLER, 16)).items()
    assert server[0] == "POST /memory/command"
    (command,) = below(spans, server[1]).items()
    assert command[0] == "create_memory"
    assert below(spans, command[1]).keys() >= {"wait for connection", "tools/call remember"}


def test_spans_have_the_attributes_of_the_conventions_and_nothing_of_the_user(
    traced: Traced,
) -> None:
    create = {"command": "create", "path": "/memories/zebra", "file_text": "zebra"}
    traced.post("/memory/command", create)
    traced.post("/memory/recall", {"query": "zebra"})
    by_name = {one.name: one for one in traced.spans()}
    server, command = by_name["POST /memory/command"], by_name["create_memory"]
    recall, call = by_name["search_memory"], by_name["tools/call remember"]
    assert (server.kind, command.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert call.kind is SpanKind.CLIENT
    assert dict(server.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/memory/command",
        "http.response.status_code": 200,
    }
    assert dict(command.attributes or {}) == {
        "gen_ai.operation.name": "create_memory",
        "gen_ai.memory.store.id": for_log("zebra-1"),
        "hms_gateway.command": "create",
        "hms_gateway.outcome": "ok",
    }
    assert (recall.attributes or {})["gen_ai.memory.record.count"] == 1
    assert (call.attributes or {})["gen_ai.tool.name"] == "remember"
    assert "zebra" not in "".join(one.to_json() for one in by_name.values())


def test_a_refusal_is_no_error_of_a_span_and_a_failure_is(serve: Serve) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with serve(tracing=OpenTelemetry(provider), hms_args="--dim 1") as gateway:
        broken = Traced(gateway, exporter)
        assert broken.post("/memory/command", {"command": "view", "path": "/memories"}) == 503
        by_name = {one.name: one for one in broken.spans()}
    command = by_name["read_memory"]
    assert (command.attributes or {})["error.type"] == "engine_start_failed"
    assert command.status.status_code is StatusCode.ERROR
    assert command.status.description is None
    assert command.events == ()
    assert by_name["POST /memory/command"].status.status_code is StatusCode.ERROR


def test_a_wrong_traceparent_begins_a_new_trace(traced: Traced) -> None:
    traced.post("/memory/command", {"command": "fly"}, traceparent="zebra")
    (server,) = traced.spans()
    assert server.parent is None


def test_every_command_is_an_operation() -> None:
    assert set(OPERATIONS) == {*COMMAND_NAMES, RECALL}


@pytest.mark.parametrize(
    ("environ", "is_on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_there_are_traces_where_the_environment_names_a_receiver(
    environ: dict[str, str], is_on: bool
) -> None:
    tracing = configured(environ)
    assert (type(tracing) is not Tracing) is is_on
    tracing.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "secret"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "999999"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1.5"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),  # read on import
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "-1"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "nobody"),
    ],
)
def test_a_variable_that_cannot_be_obeyed_is_named_at_the_start_and_by_the_doctor(
    engine: Engine, tmp_path: Path, name: str, value: str
) -> None:
    environ = environment(engine, tmp_path, OTEL_TRACES_EXPORTER="otlp", **{name: value})
    ended = run(environ)
    assert ended.returncode == 2
    assert name in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    examined = run(environ, "doctor", "--json")
    assert examined.returncode == 2
    first = json.loads(examined.stdout)["checks"][0]
    assert (first["name"], first["outcome"], name in first["found"]) == (
        "settings",
        "failure",
        True,
    )


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/json"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            None,
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": ""}, None),
        ({}, None),
    ],
)
def test_a_protocol_that_is_not_spoken_is_one_warning(
    caplog: pytest.LogCaptureFixture, environ: dict[str, str], said: str | None
) -> None:
    configured({"OTEL_TRACES_EXPORTER": "otlp", **environ}).close()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]
    assert said is None or "http/protobuf" in warnings[0]


def test_without_the_packages_it_says_so_and_serves() -> None:
    check = (
        "import logging, os, sys; logging.basicConfig(); sys.modules['opentelemetry.sdk'] = None; "
        "from hms_memory_gateway import tracing; "
        "print(type(tracing.configured({'OTEL_TRACES_EXPORTER': 'otlp'})).__name__)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", check], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "Tracing\n"
    assert "hms-memory-gateway[otel]" in ended.stderr


def test_without_a_receiver_nothing_of_it_is_imported() -> None:
    check = (
        "import sys, hms_memory_gateway.server as s; s.configured({}); "
        "sys.exit(any(m.startswith('opentelemetry.sdk') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@contextmanager
def receiver() -> Generator[tuple[str, list[str]]]:
    """An OTLP receiver on loopback: its address, and the names of the spans that it was sent."""
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent = ExportTraceServiceRequest.FromString(body)
            for resource in sent.resource_spans:
                for scope in resource.scope_spans:
                    names.extend(span.name for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", names
        finally:
            server.shutdown()
            thread.join()


def test_spans_reach_a_receiver(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (address, names):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", address)
        tracing = configured({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": address})
        with serve(tracing=tracing) as gateway:
            gateway.client().command("view", path="/memories")
        tracing.close()  # it gives up after a while, but nothing is lost as long as we are here
        expected = {"POST /memory/command", "read_memory", "tools/call list"}
        until(lambda: expected <= set(names), seconds=30)
