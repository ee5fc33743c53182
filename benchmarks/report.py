"""What is shown: how far it is, and tables in Markdown."""

import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TimeElapsedColumn

from hms_memory_gateway.compaction import Progress

_LINE_SECONDS = 2.0  # between two lines about the same work


@contextmanager
def shown(what: str) -> Generator[Progress]:
    """Show how far some work is: a bar on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Bar(*Bar.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    started = last = monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= _LINE_SECONDS:
            last = monotonic()
            sys.stderr.write(f"{what}: {done} of {total}\n")

    yield report
    sys.stderr.write(f"{what}: {monotonic() - started:.1f} s\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; the first column holds names, the others figures."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def duration(seconds: float) -> str:
    """In the unit that reads best."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{_short(seconds * 1_000)} ms"


def size(count: int) -> str:
    """In the unit that reads best."""
    return f"{_short(count / (1 << 20))} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def ratio(figure: float, reference: float) -> str:
    """How many times the reference it is."""
    return f"{_short(figure / reference)}×"


def _short(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 10 else f"{figure:.1f}" if figure >= 1 else f"{figure:.2f}"
