"""Say what was found: in lines for a person, in JSON for a script, in the exit code for both."""

import json
import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from .checks import Given, examine
from .findings import Finding, Outcome

_QUIET_SECONDS = 2.0  # longer, and somebody who waits wants to know what for
_NAME_WIDTH = 16
_OUTCOME_WIDTH = 8


def report(given: Given, cache: Path, *, as_json: bool, out: TextIO = sys.stdout) -> int:
    """Examine, and write what was found, as it is found.

    Args:
        given: what an operator has set.
        cache: where an engine that was installed earlier is.
        as_json: write one JSON object instead.
        out: where to.

    Returns:
        The exit code: 0 if nothing failed, 1 if something did, 2 for wrong settings.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # leave as after Ctrl-C: tidily
    write = _as_json if as_json else _as_lines
    with closing(examine(given, cache, _watched)) as findings:
        outcomes = write(findings, out)
    if given.wrong:
        return 2
    return 1 if Outcome.FAILURE in outcomes else 0


Findings = Iterable[tuple[str, Finding]]


def _as_lines(findings: Findings, out: TextIO) -> list[Outcome]:
    outcomes = []
    for name, finding in findings:
        outcomes.append(finding.outcome)
        start = f"{finding.outcome:{_OUTCOME_WIDTH}} {name:{_NAME_WIDTH}} "
        out.write(f"{start}{finding.found}\n")
        if finding.advice:
            out.write(f"{'':{len(start)}}-> {finding.advice}\n")
        out.flush()
    counts = [f"{outcomes.count(one)} {one}" for one in Outcome if one in outcomes]
    out.write(f"{', '.join(counts)}\n")
    return outcomes


def _as_json(findings: Findings, out: TextIO) -> list[Outcome]:
    found = list(findings)
    outcomes = [finding.outcome for _, finding in found]
    whole = {
        "ok": Outcome.FAILURE not in outcomes,
        "checks": [{"name": name, **asdict(finding)} for name, finding in found],
    }
    json.dump(whole, out, indent=2)
    out.write("\n")
    return outcomes


@contextmanager
def _watched(name: str) -> Generator[None]:
    """Say what is being looked at, once it takes long, and go on saying so."""
    done = threading.Event()

    def tell() -> None:
        seconds = 0.0
        while not done.wait(_QUIET_SECONDS):
            seconds += _QUIET_SECONDS
            sys.stderr.write(f"hms-memory-gateway: looking at `{name}` ({seconds:.0f} s)\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
