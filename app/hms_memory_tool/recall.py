"""From ranked texts to excerpts: the lines of each file that match a query. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from math import log

import snowballstemmer

from .results import Recalled
from .store import Hit
from .text import lines_of

_WINDOW_LINES = 5  # matching lines lie at most this far apart in one excerpt
_MAX_LINE_CHARS = 240  # of a line in an excerpt
_MATCHES = 500  # matching lines looked at in one file: a bound on the work
_MAX_PAIRS = 64  # of a query in a script without spaces: a bound on the work
_MAX_STEMS = 500  # new words stemmed for one text: some milliseconds, while others wait
_MAX_WORD_CHARS = 64  # a longer word is matched as it is
_WORD = re.compile(r"\w+")
# Scripts written without spaces: there two neighbouring characters stand for a word.
_UNSPACED = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


class Terms:
    """The words of a query, to be found in lines whatever their English ending."""

    def __init__(self, query: str) -> None:
        self._stemmer = snowballstemmer.stemmer("english")  # one each: it keeps state
        self._known: dict[str, str] = {}
        self._left = _MAX_STEMS
        self._stems = frozenset(map(self._stem, _WORD.findall(query.casefold())))
        self._initials = frozenset(stem[:1] for stem in self._stems)
        self.pairs = frozenset(islice(_pairs_of(query), _MAX_PAIRS))

    def refill(self) -> None:
        """Begin with another text: each has its share of the work."""
        self._left = _MAX_STEMS

    def of(self, line: str) -> set[str]:
        """Those that occur in `line`."""
        words = _WORD.findall(line.casefold())
        return {stem for word in words if (stem := self._matched(word))} | self.pairs_in(line)

    def pairs_in(self, text: str) -> set[str]:
        """The pairs that occur in `text`."""
        return {pair for pair in self.pairs if pair in text}

    def start_in(self, line: str) -> int:
        """Where the first of them begins; 0 where there is none."""
        words = (word.start() for word in _WORD.finditer(line) if self._matched(word[0].casefold()))
        pairs = (line.find(pair) for pair in self.pairs if pair in line)
        return min(chain(islice(words, 1), pairs), default=0)

    def _matched(self, word: str) -> str | None:
        # A stem begins as its word does, so that few words need to be stemmed.
        if word[:1] not in self._initials or len(word) > _MAX_WORD_CHARS:
            return word if word in self._stems else None
        stem = self._stem(word)
        return stem if stem in self._stems else None

    def _stem(self, word: str) -> str:
        if word not in self._known:
            if not self._left:
                return word  # counts as it is written
            self._left -= 1
            self._known[word] = self._stemmer.stemWord(word)
        return self._known[word]


def rank(found: Mapping[str, set[str]]) -> list[tuple[str, float]]:
    """Order files by the pairs found in them, rare ones weighing more (inverse frequency)."""
    spread = Counter(pair for pairs in found.values() for pair in pairs)
    weights = {pair: log(1 + len(found) / count) for pair, count in spread.items()}
    scores = {key: sum(weights[pair] for pair in pairs) for key, pairs in found.items() if pairs}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def merge(ranked: Sequence[Hit], scanned: Sequence[Hit], k: int) -> list[Hit]:
    """One list of the best `k` of two, a file that is in both with its better score."""
    best: dict[str, Hit] = {}
    for hit in (*ranked, *scanned):
        if hit.key not in best or hit.score > best[hit.key].score:
            best[hit.key] = hit
    return sorted(best.values(), key=lambda hit: -hit.score)[:k]


def _pairs_of(text: str) -> Iterator[str]:
    """Neighbouring characters in scripts without spaces; a lone one counts as a pair."""
    for run in _UNSPACED.findall(text):
        yield from (run[at : at + 2] for at in range(max(len(run) - 1, 1)))


def recalled(hit: Hit, terms: Terms) -> Recalled:
    """Cut the matching lines out of a ranked text."""
    terms.refill()
    lines = lines_of(hit.text) or [""]
    first, last = _matching(lines, terms)
    shown = [_clip(line, terms) for line in lines[first : last + 1]]
    return Recalled(
        path=hit.key,
        score=hit.score,
        excerpt="\n".join(shown),
        start_line=first + 1,
        end_line=last + 1,
        lexical_score=hit.lexical_score,
        semantic_score=hit.semantic_score,
    )


def _matching(lines: Sequence[str], terms: Terms) -> tuple[int, int]:
    """The first and last line (from 0) to show: the densest matches and a line on either side."""
    found = ((at, terms.of(line)) for at, line in enumerate(lines))
    matches = list(islice(((at, words) for at, words in found if words), _MATCHES))
    if not matches:
        return 0, min(_WINDOW_LINES, len(lines)) - 1
    windows = [
        [match for match in matches[at : at + _WINDOW_LINES] if match[0] < start + _WINDOW_LINES]
        for at, (start, _) in enumerate(matches)
    ]
    best = max(windows, key=lambda window: len(set().union(*(words for _, words in window))))
    return max(best[0][0] - 1, 0), min(best[-1][0] + 1, len(lines) - 1)


def _clip(line: str, terms: Terms) -> str:
    if len(line) <= _MAX_LINE_CHARS:
        return line
    start = max(terms.start_in(line) - _MAX_LINE_CHARS // 4, 0)
    end = start + _MAX_LINE_CHARS
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
