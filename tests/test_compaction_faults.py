"""Gateways and engines killed at each step of a compaction: nothing lost, nothing twice."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.folders import Folders

from .conftest import engines_in, until

ReadStore = Callable[[Path, str], dict[str, str]]

_VICTIMS = ("gateway", "old", "fresh")
_SECONDS = 60
_COMPACTION_MS = 400
_NEAR = 6  # steps: of the victims, each is to be killed at each step in the long run


class Expected:
    """What each file may hold: one state, or two while the outcome of a command is unknown."""

    def __init__(self) -> None:
        self._files: dict[str, list[str | None]] = {}

    def follow(self, lines: list[str]) -> None:
        """Go through what a gateway sent and acknowledged."""
        sent: tuple[str, str, str] | None = None
        for line in lines:
            word, *rest = line.split()
            if word == "sent":
                sent = (rest[0], rest[1], rest[2])
                self._send(*sent)
            elif word in ("done", "refused") and sent:
                self._settle(sent[1], is_done=word == "done")

    def matches(self, found: dict[str, str]) -> None:
        """Compare with what is there, and go on from it."""
        files = {key: text for key, text in found.items() if key.startswith("/memories/")}
        assert set(files) <= set(self._files)
        for path, states in self._files.items():
            assert files.get(path) in states, (path, files.get(path), states)
            self._files[path] = [files.get(path)]

    def _send(self, kind: str, path: str, token: str) -> None:
        states = self._files.get(path, [None])
        self._files[path] = [*states, *(_after(kind, state, token) for state in states)]

    def _settle(self, path: str, *, is_done: bool) -> None:
        states = self._files[path]
        half = len(states) // 2
        self._files[path] = states[half:] if is_done else states[:half]


def _after(kind: str, before: str | None, token: str) -> str | None:
    if kind == "delete":
        return None
    return f"{token}\n{before or ''}" if kind == "insert" else f"{token}\n"


def _run(folder: Path, engine: Engine, seed: int, victim: str, step: int) -> list[str]:
    script = Path(__file__).with_name("compacting.py")
    process = subprocess.run(
        [sys.executable, script, folder, str(seed), victim, str(step)],
        env={**os.environ, "HMS_MCP_BIN": str(engine.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert process.returncode in (0, -9), process.stdout
    return [line for line in process.stdout.split("\n")[:-1] if line]


def _plan(runs: int, steps: int, seed: int) -> Iterator[tuple[str, int]]:
    """Whom to kill, and when: in two runs of three at a step, the steps spread evenly over all
    that a compaction does to files; in the third at a random instant, as it copies.
    """
    chance = random.Random(seed)
    for number in range(runs):
        victim = _VICTIMS[number % len(_VICTIMS)]
        if number // len(_VICTIMS) % 3 == 2:
            yield victim, -chance.randrange(1, _COMPACTION_MS)
        else:
            yield victim, 1 + (number * steps // runs + chance.randrange(_NEAR)) % steps


def test_no_kill_at_any_step_loses_or_doubles_anything(
    engine: Engine,
    tmp_path: Path,
    read_store: ReadStore,
    pytestconfig: pytest.Config,
    fault_seed: int,
) -> None:
    runs: int = pytestconfig.getoption("--compaction-runs")
    expected = Expected()
    whole = _run(tmp_path, engine, fault_seed, "nobody", 0)
    expected.follow(whole)
    expected.matches(read_store(tmp_path, "n"))
    assert whole.count("compacted") == 2
    steps = int(whole[-1].removeprefix("steps "))
    died = 0
    for number, (victim, step) in enumerate(_plan(runs, steps, fault_seed), fault_seed + 1):
        lines = _run(tmp_path, engine, number, victim, step)
        if lines[-1].startswith("steps"):
            has_reached = 0 < step <= int(lines[-1].removeprefix("steps "))
            assert victim != "gateway" or not has_reached, "it was to be killed and was not"
        else:
            died += 1
        expected.follow(lines)
        expected.matches(_read(tmp_path, read_store))
    assert died > 0


def _read(folder: Path, read_store: ReadStore) -> dict[str, str]:
    """What is there once the next gateway has started, and engines of the last one have gone."""
    until(lambda: not engines_in(folder), _SECONDS)
    Folders(folder).recover()
    assert not list((folder / "compaction" / "fresh").iterdir())
    assert not list((folder / "compaction" / "replaced").iterdir())
    return read_store(folder, "n")
