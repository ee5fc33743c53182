"""What a recall answers: each file with the lines that match, as data and as text for Claude."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recalled:
    """A file that a query found.

    `score` is relative to the best hit (0 to 1); `excerpt` is lines `start_line` to `end_line`
    of the file, a long line cut around what matches.
    """

    path: str
    score: float
    excerpt: str
    start_line: int
    end_line: int
    lexical_score: float
    semantic_score: float | None = None


def render(results: Sequence[Recalled]) -> str:
    """The answer of `memory_recall` as Claude reads it, lines numbered as `view` numbers them."""
    if not results:
        return (
            "No memory file matches. Other words may find one, "
            "or view /memories to see which files there are."
        )
    found = [_paragraph(rank, result) for rank, result in enumerate(results, 1)]
    return "\n\n".join(["Memory files that match, best first:", *found])


def _paragraph(rank: int, result: Recalled) -> str:
    lines = enumerate(result.excerpt.split("\n"), result.start_line)
    head = f"{rank}. {result.path} (score {result.score:.2f})"
    return "\n".join([head, *(f"{number:6d}\t{line}" for number, line in lines)])
