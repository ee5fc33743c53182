"""A real Prometheus scrapes a real gateway under load: its rules, its alerts, the dashboard.

What differs from `deploy/prometheus` is what a test cannot wait for: the target's port, fifteen
seconds between scrapes, which are one, and the time that an alert has to last before it fires.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest

from .conftest import Gateway, Serve, engines_in
from .ports import free_port

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/gateway.json").read_text())
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
_PATIENCE_SECONDS = 30.0
_ROUNDS = 20  # of work in a namespace; then comes the next, whose store has to be opened


@pytest.fixture(scope="module")
def binaries() -> dict[str, str]:
    """Prometheus and its tool; a run of CI without them proves nothing."""
    found = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        text = f"{' and '.join(missing)} not found: apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return {name: path for name, path in found.items() if path}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
)
def test_promtool_has_no_objection(binaries: dict[str, str], arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [binaries["promtool"], *arguments],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    tests = (DEPLOY / "prometheus/rules_test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == rules.count("summary: ") == rules.count("description: ") > 5
    for alert in alerts:  # once for a gateway at ease, then quiet and fired
        assert len(re.findall(rf"alertname: {alert}\n", tests)) >= 3, alert


class Prometheus:
    """A Prometheus that runs."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        answer = self.http.get("/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        samples: list[dict[str, Any]] = answer["data"]["result"]
        return samples

    def firing(self) -> set[str]:
        """The alerts that fire."""
        alerts = self.http.get("/alerts").json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


def eventually(is_so: Callable[[], object]) -> bool:
    """Whether it becomes true, within the time that a scrape and some evaluations take."""
    ends = monotonic() + _PATIENCE_SECONDS
    while monotonic() < ends:
        if is_so():
            return True
        sleep(0.2)
    return False


def _answers(prometheus: Prometheus) -> bool:
    try:
        return bool(prometheus.query("hms_gateway_ready"))
    except (httpx2.HTTPError, ValueError):  # while it starts, it answers in words
        return False


@contextmanager
def _running(binary: str, folder: Path, target: str, token: str) -> Generator[Prometheus]:
    """Prometheus with the configuration of `deploy`, quicker."""
    config = (DEPLOY / "prometheus/prometheus.yml").read_text()
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    for asked, ours in (("localhost:8080", target), ("15s", "1s")):
        assert asked in config
        config = config.replace(asked, ours)
    # As the comment in it says for a gateway with a token.
    config = re.sub("# (authorization:|  credentials_file:)", r"\1", config)
    config = config.replace("/etc/prometheus/hms-gateway-token", str(folder / "token"))
    (folder / "token").write_text(token)
    (folder / "prometheus.yml").write_text(config)
    (folder / "rules.yml").write_text(re.sub(r"\bfor: \w+", "for: 1s", rules))
    port = free_port()
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            api = f"http://127.0.0.1:{port}/api/v1"
            with httpx2.Client(base_url=api, trust_env=False) as http:
                prometheus = Prometheus(http)
                assert eventually(lambda: _answers(prometheus)), (folder / "log").read_text()
                yield prometheus
        finally:
            process.terminate()


def _work(gateway: Gateway, is_over: threading.Event) -> None:
    """What agents do, some of it wrong, until told to stop; engines may die meanwhile."""
    for number in count():
        if is_over.wait(0.02):
            return
        if number % _ROUNDS == 0:
            client = gateway.client()
        path = f"/memories/{number}.md"
        for command in (
            {"command": "create", "path": path, "file_text": "# Acme\nPrefers email.\n"},
            {"command": "str_replace", "path": path, "old_str": "email", "new_str": "phone"},
            {"command": "insert", "path": path, "insert_line": 1, "insert_text": "Since 2019."},
            {"command": "view", "path": "/memories/../etc/passwd"},
            {"command": "view", "path": path},
            {"command": "rename", "old_path": path, "new_path": f"{path}.old"},
            {"command": "delete", "path": f"{path}.old"},
        ):
            client.post("/memory/command", command)
        client.post("/memory/recall", {"query": "How do I reach Acme?"})


class Monitored:
    """A gateway under load, and the Prometheus that watches it."""

    def __init__(self, gateway: Gateway, prometheus: Prometheus) -> None:
        self.gateway = gateway
        self.prometheus = prometheus
        self.stop_gateway: Callable[[], None] = lambda: None


@pytest.fixture(scope="module")
def monitored(
    binaries: dict[str, str], serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitored]:
    """Both, until the module is done."""
    token, is_over = "a-token-for-all", threading.Event()
    with ExitStack() as started:
        gateway = started.enter_context(serve(token=token))
        gateway.http.headers["Authorization"] = f"Bearer {token}"
        agents = [threading.Thread(target=_work, args=(gateway, is_over)) for _ in range(2)]
        for agent in agents:
            agent.start()
        target = gateway.http.base_url.netloc.decode()
        folder = tmp_path_factory.mktemp("prometheus")

        def stop() -> None:
            is_over.set()
            for agent in agents:
                agent.join()
            started.close()

        try:
            with _running(binaries["prometheus"], folder, target, token) as prometheus:
                monitored = Monitored(gateway, prometheus)
                monitored.stop_gateway = stop
                yield monitored
        finally:
            stop()


def _shown(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def test_the_load_is_seen(monitored: Monitored) -> None:
    commands = 'sum by (command) (rate(hms_gateway_commands_total{outcome="ok"}[1m])) > 0'
    assert eventually(lambda: len(monitored.prometheus.query(commands)) == 7)
    assert monitored.prometheus.query('hms_gateway_commands_total{command="invalid"} > 0')
    assert monitored.prometheus.firing() == set()


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_every_query_of_the_dashboard_returns_data(
    monitored: Monitored, title: str, expression: str
) -> None:
    def has_data() -> bool:
        samples = monitored.prometheus.query(_shown(expression))
        return any(sample["value"][1] != "NaN" for sample in samples)

    assert eventually(has_data), title


def test_every_recording_rule_has_a_value(monitored: Monitored) -> None:
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    names = re.findall(r"- record: (\S+)", rules)
    assert len(names) > 5
    for name in names:
        assert eventually(partial(monitored.prometheus.query, name)), name


def test_an_alert_fires_when_engines_are_killed(monitored: Monitored) -> None:
    def kills_and_fires() -> bool:
        for engine in engines_in(monitored.gateway.settings.data_dir):
            os.kill(engine, signal.SIGKILL)
        query = monitored.prometheus.query
        has_died = query('hms_gateway_pool_closes_total{reason="died"} > 0')
        # A command is tried again only where an engine died under it.
        has_retried = query("hms_gateway_command_retries_total > 0")
        is_firing = "HmsGatewayEnginesRestart" in monitored.prometheus.firing()
        return bool(has_died and has_retried and is_firing)

    assert eventually(kills_and_fires)


def test_an_alert_fires_when_the_gateway_is_gone(monitored: Monitored) -> None:
    """Last, since it is gone."""
    monitored.stop_gateway()
    assert eventually(lambda: "HmsGatewayDown" in monitored.prometheus.firing())
