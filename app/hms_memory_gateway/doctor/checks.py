"""Which checks there are, in which order, and what each of them needs."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hms_memory_gateway.settings import Settings

from . import engine, folder, machine, network
from .findings import Case, Finding, Outcome, failure, ok, skipped, warning

Watch: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Entered for as long as the check of that name runs."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the names of those that have to go well before it is worth a look."""

    name: str
    look: Callable[[Case], Finding]
    needs: Sequence[str] = ("settings",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What an operator has set.

    Attributes:
        settings: None if they are wrong.
        wrong: what is wrong with them, in sentences.
        unknown: variables with our prefix that are no settings.
        environ: the environment.
    """

    settings: Settings | None
    wrong: Sequence[str]
    unknown: Sequence[str]
    environ: Mapping[str, str]


def examine(given: Given, cache: Path, watch: Watch) -> Generator[tuple[str, Finding]]:
    """Run the checks and yield what each has found, with its name.

    Arguments: what was set, where an engine that was installed earlier is, and what watches a
    check that runs. Nothing is changed; close the iterator to have the scratch folder removed.
    """
    failed: dict[str, str] = {}  # and what has to be mended for it
    for finding in _settings(given):
        if finding.outcome is Outcome.FAILURE:
            failed["settings"] = "settings"
        yield "settings", finding
    with ExitStack() as leaving:
        case = Case(given.settings, given.environ, cache, leaving)
        for check in _checks(case):
            cause = next((failed[need] for need in check.needs if need in failed), None)
            if cause is not None:
                failed[check.name] = cause
                yield check.name, skipped(cause)
                continue
            with watch(check.name):
                finding = check.look(case)
            if finding.outcome is Outcome.FAILURE:
                failed[check.name] = check.name
            yield check.name, finding


def _settings(given: Given) -> Iterator[Finding]:
    advice = "`hms-memory-gateway --help` lists the settings."
    for sentence in given.wrong:
        yield failure(sentence, f"Correct it; {advice}")
    for name in given.unknown:
        yield warning(f"{name} is set, but is no setting of this version", f"Unset it; {advice}")
    if not (given.wrong or given.unknown):
        yield ok("all of them can be used")


def _checks(case: Case) -> Sequence[Check]:
    first = [Check("access", network.access), Check("limits", machine.limits)]
    clock = Check("clock", machine.Clocks().check)
    if case.is_shared:
        rest = [Check("shared engine", network.shared_engine), Check("port", network.port)]
        return [*first, *rest, clock]
    return [
        *first,
        Check("engine", engine.found, needs=()),
        Check("data folder", folder.usable),
        Check("gateway", folder.served),
        Check("file system", folder.on_disk),
        Check("space", folder.space),
        Check("files", folder.keeps, needs=("data folder",)),
        Check("owner", folder.owned, needs=("data folder",)),
        Check("permissions", folder.private, needs=("data folder",)),
        Check("temporary files", machine.temporary, needs=()),
        Check("port", network.port),
        Check("start", engine.starts, needs=("engine", "space", "files")),
        Check("round trip", engine.round_trip, needs=("start",)),
        clock,
    ]
