"""`GET /metrics`: every series from the start, whatever callers send, and true figures."""

import os
import random
import signal
import string

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from hms_memory_gateway.metrics import BUCKETS, OK, Metrics, outcome
from hms_memory_tool.errors import Refused, TimedOut, VersionConflict
from hms_memory_tool.store import ToolFailed

from .conftest import Gateway, Serve, engines_in

VIEW = {"command": "view", "path": "/memories"}
Series = tuple[str, tuple[tuple[str, str], ...]]


def scraped(gateway: Gateway) -> dict[Series, float]:
    """Every series and its value."""
    answer = gateway.http.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


class Figures:
    """What has changed since the last look."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._before = scraped(gateway)

    def look(self) -> None:
        self._now = scraped(self._gateway)

    def grown(self, name: str, **labels: str) -> float:
        series = (f"hms_gateway_{name}", tuple(sorted(labels.items())))
        return self._now[series] - self._before[series]


def word(chance: random.Random, size: int = 8) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=size))


def storm(gateway: Gateway, requests: int, chance: random.Random) -> set[int]:
    """Requests of every kind, with names that nobody has sent before; their statuses."""
    statuses = set()
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")
    routes = ("/memory/command", "/memory/recall", "/memory/tools", "/metrics", "/docs", "/readyz")
    for _ in range(requests):
        method = chance.choice(methods)
        made_up = (f"/{word(chance)}/{word(chance)}", f"/memory/{word(chance)}?{word(chance)}=1")
        path = chance.choice((*routes, *made_up))
        body = chance.choice(
            [
                b"",
                b"{",
                b'{"command": "%s"}' % word(chance).encode(),
                b'{"command": "view", "path": "/memories/%s"}' % word(chance).encode(),
                b'{"query": "%s"}' % word(chance).encode(),
            ]
        )
        headers = {
            "X-Request-Id": word(chance),
            "Idempotency-Key": word(chance),
            # Few that exist: each opens a store.
            "X-Memory-Namespace": chance.choice(["n1", "n2", "Ä", word(chance) + "--" + "0" * 32]),
            "Host": chance.choice(["localhost", "localhost", "localhost", word(chance)]),
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        statuses.add(gateway.http.request(method, path, content=body, headers=raw).status_code)
    return statuses


def test_no_request_adds_a_series(serve: Serve) -> None:
    chance = random.Random(7)
    with serve() as gateway:
        fresh = set(scraped(gateway))
        assert storm(gateway, 3_000, chance) >= {200, 400, 403, 404, 405}
        for engine in engines_in(gateway.settings.data_dir):
            os.kill(engine, signal.SIGKILL)
        storm(gateway, 200, chance)
        assert set(scraped(gateway)) == fresh
        assert len(fresh) < 1_000
        values = {value for _, labels in fresh for _, value in labels}
        assert not {"n1", "n2"} & values


def test_commands_are_counted_by_how_they_ended(serve: Serve) -> None:
    with serve() as gateway:
        figures = Figures(gateway)
        client = gateway.client()
        client.command("create", path="/memories/a", file_text="x")
        client.command("create", path="/memories/a", file_text="x")
        client.command("fly", path="/memories/a")
        client.recall("x")
        figures.look()
        assert figures.grown("commands_total", command="create", outcome="ok") == 1
        assert figures.grown("commands_total", command="create", outcome="refused") == 1
        assert figures.grown("commands_total", command="invalid", outcome="refused") == 1
        assert figures.grown("commands_total", command="recall", outcome="ok") == 1
        assert figures.grown("command_duration_seconds_count", command="create") == 2
        assert figures.grown("engine_calls_total", tool="remember", outcome="ok") == 1
        assert figures.grown("engine_calls_total", tool="remember", outcome="already_exists") == 1
        assert figures.grown("pool_opens_total") == 1
        assert figures.grown("pool_open_duration_seconds_count") == 1
        assert figures.grown("pool_wait_duration_seconds_count") == 1
        assert figures.grown("pool_connections", state="idle") == 1


def test_requests_are_counted_by_route_and_not_by_path(serve: Serve) -> None:
    with serve() as gateway:
        figures = Figures(gateway)
        sent = gateway.client().post("/memory/command", VIEW)
        gateway.http.get("/memory/command")
        gateway.http.get("/a/b/c")
        figures.look()
        route = {"route": "/memory/command"}
        assert figures.grown("http_responses_total", **route, method="POST", status="200") == 1
        assert figures.grown("http_responses_total", **route, method="other", status="405") == 1
        other = {"route": "other", "method": "other", "status": "404"}
        assert figures.grown("http_responses_total", **other) == 1
        assert figures.grown("http_request_bytes_total") == len(sent.request.content)
        assert figures.grown("http_response_bytes_total") > len(sent.content)
        assert figures.grown("http_requests_in_flight") == 0


def test_a_killed_engine_is_a_close_and_a_restart(serve: Serve) -> None:
    with serve() as gateway:
        client = gateway.client()
        client.command("view", path="/memories")
        figures = Figures(gateway)
        (engine,) = engines_in(gateway.settings.data_dir)
        os.kill(engine, signal.SIGKILL)
        client.command("view", path="/memories")
        figures.look()
        assert figures.grown("pool_closes_total", reason="died") == 1
        assert figures.grown("engine_restarts_total") == 1
        assert figures.grown("pool_opens_total") == 1
        assert figures.grown("commands_total", command="view", outcome="ok") == 1


def test_a_repeated_command_is_a_replay(serve: Serve) -> None:
    with serve() as gateway:
        figures = Figures(gateway)
        for _ in range(3):
            headers = {"X-Memory-Namespace": "n", "Idempotency-Key": "k"}
            gateway.http.post("/memory/command", json=VIEW, headers=headers)
        figures.look()
        assert figures.grown("idempotent_replays_total") == 2
        assert figures.grown("commands_total", command="view", outcome="ok") == 1


def test_the_metrics_ask_for_the_token(serve: Serve) -> None:
    with serve(token="a-token-for-all") as gateway:
        assert gateway.http.get("/metrics").status_code == 401
        headers = {"Authorization": "Bearer a-token-for-all"}
        assert gateway.http.get("/metrics", headers=headers).status_code == 200


def test_who_accepts_open_metrics_gets_them(gateway: Gateway) -> None:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"}
    answer: httpx2.Response = gateway.http.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert list(open_metrics(answer.text))  # type: ignore[no-untyped-call]


def test_buckets_are_from_half_a_millisecond_to_ten_seconds() -> None:
    assert BUCKETS[0] == 0.0005
    assert BUCKETS[-1] == 10
    assert list(BUCKETS) == sorted(BUCKETS)


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (None, "ok"),
        (Refused("no"), "refused"),
        (TimedOut("late"), "timed_out"),
        (ToolFailed("refused", "made up"), "refused"),
        # not foreseen, whatever its name
        (ToolFailed("of a later version", ""), "internal"),
        (VersionConflict(""), "internal"),
        (ValueError(), "internal"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_an_outcome_is_one_of_those_that_are_known(error: BaseException | None, label: str) -> None:
    assert outcome(error, (OK, "refused", "timed_out")) == label


def test_a_conflict_is_a_write_that_met_another() -> None:
    metrics = Metrics()
    metrics.called("remember", "version_conflict", 0.001)
    metrics.called("remember", "ok", 0.001)
    text = metrics.render("")[0].decode()
    assert "hms_gateway_edit_conflicts_total 1.0" in text
