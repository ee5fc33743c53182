"""Faults at random, and a model of what was acknowledged: nothing lost, doubled, mixed or torn.

A few hundred commands by default; `pytest tests/test_faults.py --fault-commands 10000` is the long
run, and `--fault-seed` repeats one.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from hms_memory_gateway.engine import Engine

from .memory_model import ROOT, State, after, listed, shown
from .ports import free_port
from .test_cli import environment, running

NAMESPACES = [f"fault-{number}@example" for number in range(5)]
FILES = [f"{ROOT}/{name}" for name in ("a", "b", "d/x", "d/y", "e/x", "e/y")]
TREES = [f"{ROOT}/{name}" for name in ("d", "e", "f")]
PATIENCE_SECONDS = 90.0


class Agent:
    """One user's agent: sends commands one after the other, and knows what it was told."""

    def __init__(self, url: str, namespace: str, seed: int, counts: Counter[str]) -> None:
        self._http = httpx2.Client(
            base_url=url, headers={"X-Memory-Namespace": namespace}, trust_env=False, timeout=30
        )
        self._chance = random.Random(seed)
        self._counts = counts
        self._number = 0
        self.state: State = {}

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def act(self) -> None:
        """Send a random command, and settle with the model what came of it."""
        command = self._command()
        expected = after(self.state, command)
        # Whoever hangs up has to ask again, since what was sent may be done at any time later.
        impatient = self._chance.random() < 0.05
        has_key = impatient or self._chance.random() < 0.5
        headers = {"Idempotency-Key": uuid4().hex} if has_key else {}
        status, body = self._send(command, headers, timeout=0.003 if impatient else 30)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while has_key and status != 200:
            assert time.monotonic() < deadline, "the gateway does not come back"
            self._counts["sent again"] += 1
            time.sleep(0.05)
            status, body = self._send(command, headers, timeout=30)
        self._counts["commands"] += 1
        if status == 200:
            assert body["is_error"] is (expected is None), (command, body, self.state)
            self.state = self.state if expected is None else expected
        elif status == 503:
            self._counts["not done"] += 1
            self.check([self.state])
        else:
            self._counts["outcome unknown"] += 1
            self.check([self.state, self.state if expected is None else expected])

    def check(self, states: list[State]) -> None:
        """Read everything; it has to be one of these states, and is the one from now on."""
        lines = self._view(ROOT)[2:]
        paths = {line.partition("\t")[2] for line in lines}
        files = {path: self._view(path)[1:] for path in paths if not path.endswith("/")}
        actual = {path: [line[7:] for line in text] for path, text in files.items()}
        for state in states:
            if paths == listed(state) and actual == {one: shown(state[one]) for one in state}:
                self.state = state
                return
        raise AssertionError(f"{actual} is none of {states}")

    def _view(self, path: str) -> list[str]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status, body = self._send({"command": "view", "path": path}, {}, timeout=30)
            if status == 200:
                assert body["is_error"] is False, (path, body)
                text: str = body["content"]
                return text.split("\n")
            time.sleep(0.05)
        raise AssertionError("the gateway does not come back")

    def _send(
        self, command: dict[str, Any], headers: dict[str, str], timeout: float
    ) -> tuple[int, dict[str, Any]]:
        try:
            answer = self._http.post(
                "/memory/command", json=command, headers=headers, timeout=timeout
            )
        except httpx2.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def _command(self) -> dict[str, Any]:
        self._number += 1
        pick, path = self._chance.choice, self._chance.choice(FILES)
        text = f"line {self._number}"
        existing = pick(sorted(self.state)) if self.state and self._chance.random() < 0.7 else path
        kinds: list[dict[str, Any]] = [
            {"command": "create", "path": path, "file_text": f"{text}\n"},
            {"command": "create", "path": path, "file_text": f"{text}\n"},
            {"command": "insert", "path": existing, "insert_line": 0, "insert_text": text},
            {"command": "insert", "path": existing, "insert_line": 0, "insert_text": text},
            {"command": "str_replace", "path": existing, "old_str": "line ", "new_str": "row "},
            {"command": "delete", "path": pick([existing, *TREES])},
            {"command": "rename", "old_path": existing, "new_path": pick(FILES)},
            {"command": "rename", "old_path": pick(TREES), "new_path": pick(TREES)},
        ]
        return pick(kinds)


class Troubles:
    """Kills and stops processes at random moments, and starts the gateway again."""

    def __init__(self, environ: dict[str, str], log: Path, seed: int, counts: Counter[str]) -> None:
        self._environ = environ
        self._log = log
        self._chance = random.Random(seed)
        self._counts = counts
        self.is_over = threading.Event()
        self.is_up = threading.Event()

    def run(self) -> None:
        """Until it is over; each gateway meets some troubles and the last one none."""
        while not self.is_over.is_set():
            cap = str(self._chance.choice([1, 3]))
            environ = {**self._environ, "HMS_GATEWAY_MAX_CONNECTIONS": cap}
            with running(environ, self._log) as gateway:
                self.is_up.set()
                for _ in range(self._chance.randrange(4, 12)):
                    if self.is_over.wait(self._chance.uniform(0.02, 0.6)):
                        return
                    self._hurt(gateway.children())
                self._counts["kill -9 of the gateway"] += 1
                children = gateway.children()
                gateway.process.kill()
                gateway.process.wait()
                for child in children:  # one that stays stopped would keep its store locked
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGCONT)

    def _hurt(self, children: list[int]) -> None:
        if children:
            stops = self._chance.random() < 0.2
            number = signal.SIGSTOP if stops else signal.SIGKILL
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(self._chance.choice(children), number)
            self._counts[f"{number.name} of an engine"] += 1


def test_nothing_acknowledged_is_lost_or_done_twice_whatever_dies(
    engine: Engine,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
    fault_seed: int,
) -> None:
    commands = pytestconfig.getoption("fault_commands")
    counts: Counter[str] = Counter()
    environ = environment(
        engine,
        tmp_path / "data",
        HMS_GATEWAY_PORT=str(free_port()),
        HMS_GATEWAY_CALL_SECONDS="1",
        HMS_GATEWAY_ACQUIRE_SECONDS="10",
        HMS_GATEWAY_IDLE_SECONDS="0.5",
    )
    url = f"http://127.0.0.1:{environ['HMS_GATEWAY_PORT']}"
    troubles = Troubles(environ, tmp_path / "log", fault_seed, counts)
    agents = [
        Agent(url, namespace, fault_seed + number, counts)
        for number, namespace in enumerate(NAMESPACES, 1)
    ]

    def live(agent: Agent) -> None:
        for _ in range(commands // len(agents)):
            agent.act()

    with ThreadPoolExecutor(len(agents) + 1) as threads:
        source = threads.submit(troubles.run)
        try:
            assert troubles.is_up.wait(60)
            for done in [threads.submit(live, agent) for agent in agents]:
                done.result()
        finally:
            troubles.is_over.set()
        source.result()
    with running(environ, tmp_path / "log"):
        for agent in agents:
            agent.check([agent.state])
            agent.close()
    for name, number in sorted(counts.items()):
        record_property(name, number)
    assert counts["commands"] == commands // len(agents) * len(agents)
    assert counts["SIGKILL of an engine"] > 0
