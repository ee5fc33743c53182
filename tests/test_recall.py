"""Excerpts of what a query found, and the answer that Claude reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hms_memory_tool.recall import Terms, recalled
from hms_memory_tool.results import Recalled, render
from hms_memory_tool.store import Hit

QUERY = "red green blue"
LINES = st.lists(
    st.lists(st.sampled_from(["red", "green", "blue", "grey", "Reds,", "x"]), max_size=3).map(
        " ".join
    ),
    min_size=1,
    max_size=30,
)


def find(query: str, text: str) -> Recalled:
    return recalled(Hit("/memories/a.md", text, 1.0, 1.0, None), Terms(query))


def test_what_the_engine_said_of_a_hit_is_kept() -> None:
    assert recalled(Hit("/memories/a.md", "one\ntwo\n", 0.5, 0.25, 0.75), Terms("two")) == Recalled(
        path="/memories/a.md",
        score=0.5,
        excerpt="one\ntwo",
        start_line=1,
        end_line=2,
        lexical_score=0.25,
        semantic_score=0.75,
    )


@given(LINES)
def test_an_excerpt_is_the_five_lines_with_most_words_of_the_query(lines: list[str]) -> None:
    found = find(QUERY, "\n".join(lines) + "\n")
    assert found.excerpt.split("\n") == lines[found.start_line - 1 : found.end_line]

    def words_in(some: list[str]) -> set[str]:
        words = " ".join(some).lower().replace("reds,", "red").split()
        return set(words) & set(QUERY.split())

    most = max(len(words_in(lines[at : at + 5])) for at in range(len(lines)))
    assert len(words_in(found.excerpt.split("\n"))) >= most
    assert found.end_line - found.start_line < 7


@pytest.mark.parametrize(
    ("matching", "first", "last"),
    [
        # One match has a line on either side of it, as far as there are any
        *(({1: "red"}, 1, 2), ({10: "red"}, 9, 11), ({20: "red"}, 19, 20)),
        # Matches near each other are shown together
        *(({10: "red", 12: "red"}, 9, 13), ({10: "red", 14: "blue"}, 9, 15)),
        # Of those far apart the first, or the one with more of the words
        *(({3: "red", 15: "red"}, 2, 4), ({3: "red", 15: "red blue"}, 14, 16)),
        ({3: "red", 4: "red", 15: "red", 17: "green"}, 14, 18),
    ],
)
def test_the_densest_matches_are_shown(matching: dict[int, str], first: int, last: int) -> None:
    lines = [matching.get(number, f"line {number}") for number in range(1, 21)]
    found = find(QUERY, "\n".join(lines))
    assert (found.start_line, found.end_line) == (first, last)
    assert found.excerpt == "\n".join(lines[first - 1 : last])


@pytest.mark.parametrize(
    ("query", "line"),
    [
        # English endings, on either side
        *(("deploying", "we deployed it"), ("memories", "a memory"), ("run", "She runs.")),
        *(("connection", "is it connected?"), ("trying", "I tried"), ("skies", "the sky")),
        # Short words, whose stem differs early
        *(("AWS", "on AWS"), ("try", "try it"), ("dry", "keep dry"), ("flying", "to fly")),
        *(("using", "he uses it"), ("being", "to be"), ("going", "they go"), ("die", "is dying")),
        *(("why", "that is why"), ("ads", "no ads"), ("its", "on its own"), ("icy", "an icy road")),
        # Letters' cases, other alphabets, numbers, punctuation
        *(("STRASSE", "die Straße 5"), ("МОСКВА", "в москва"), ("8080", "port: 8080")),
        *(("bob.smith", "Bob, Smith"), ("don't", "don’t"), ("C++ (x", "use c++")),
    ],
)
def test_a_word_is_found_whatever_its_ending_or_case(query: str, line: str) -> None:
    found = find(query, "\n".join(["-"] * 9 + [line] + ["-"] * 9))
    assert (found.start_line, found.end_line) == (9, 11)


@given(
    st.text("abdeglsy", min_size=1, max_size=3),
    st.sampled_from(["", "s", "y", "ly", "ed", "ies", "ing", "edly", "ful"]),
)
def test_every_word_finds_itself(beginning: str, ending: str) -> None:
    word = beginning + ending
    assert Terms(word).of(f"- {word.upper()}, or so") != set()


@pytest.mark.parametrize(
    ("query", "line", "matches"),
    [
        # Scripts without spaces: two neighbouring characters
        *(("咖啡", "用户喜欢喝咖啡，不喜欢茶", True), ("タマ", "猫の名前はタマです", True)),
        *(("커피", "나는커피를좋아한다", True), ("咖啡怎么样", "喝咖啡", True)),
        # One of them alone is another word, but a query of one is looked for
        *(("咖啡", "咖喱", False), ("咖啡", "奶啡", False), ("茶", "tea茶", True)),
        # Together with words
        *(("coffee 咖啡", "喝咖啡", True), ("coffee 咖啡", "Coffees", True)),
    ],
)
def test_text_without_spaces_is_matched_by_pairs(query: str, line: str, matches: bool) -> None:
    assert bool(Terms(query).of(line)) is matches


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        *(("", ""), ("\n", ""), ("one", "one"), ("1\n2\n3\n", "1\n2\n3")),
        ("1\n2\n3\n4\n5\n6\n7\n", "1\n2\n3\n4\n5"),
    ],
)
def test_a_file_found_by_meaning_alone_shows_its_top(text: str, excerpt: str) -> None:
    found = find("other words", text)
    assert found.excerpt == excerpt
    assert (found.start_line, found.end_line) == (1, excerpt.count("\n") + 1)


@pytest.mark.parametrize(
    ("query", "before", "match", "after"),
    [
        *(("needle", "hay " * 500, "Needles", " hay" * 500), ("needle", "", "needle", " x" * 500)),
        *(("needle", "hay " * 500, "needle", ""), ("needle", "x" * 5_000 + " ", "needle", "")),
        # A script without spaces
        *(
            ("咖啡", "我喜欢，" * 200, "咖啡", "，不" * 200),
            ("咖啡", "喜" * 500, "咖啡", "不" * 500),
        ),
        ("coffee 咖啡", "喜" * 500, "咖啡", " coffee"),
    ],
)
def test_a_long_line_is_clipped_around_its_match(
    query: str, before: str, match: str, after: str
) -> None:
    whole = before + match + after
    found = find(query, f"top\n{whole}\nbottom")
    top, line, bottom = found.excerpt.split("\n")
    assert (top, bottom, found.start_line, found.end_line) == ("top", "bottom", 1, 3)
    clipped = line.strip("…")
    assert bool(before) is (clipped.index(match) > 0)
    assert clipped in whole
    assert len(clipped) <= 240
    assert line.startswith("…") is not whole.startswith(clipped)
    assert line.endswith("…") is not whole.endswith(clipped)


def test_a_line_is_clipped_only_beyond_240_characters() -> None:
    assert find("x", "x" + "a" * 239).excerpt == "x" + "a" * 239
    assert find("x", "x " + "a" * 239).excerpt == "x " + "a" * 238 + "…"


def test_other_separators_than_newlines_stay_in_the_line() -> None:
    found = find("red", "a\rb\x0cc\u2028\x85red\r\nlast\r\n")
    assert (found.excerpt, found.end_line) == ("a\rb\x0cc\u2028\x85red\r\nlast\r", 2)


class CountingTerms(Terms):
    """Counts the texts that were looked at."""

    looked_at = 0

    def of(self, line: str) -> set[str]:
        self.looked_at += 1
        return super().of(line)


def test_matching_lines_are_looked_at_up_to_a_bound() -> None:
    terms = CountingTerms("red green")
    text = "red\n" * 499 + "green\n" + "red\n" * 9_000
    found = recalled(Hit("/memories/a.md", text, 1.0, 1.0, None), terms)
    assert (found.start_line, found.end_line) == (495, 501)
    assert terms.looked_at == 500


@pytest.mark.parametrize(
    "line",
    [
        *("red" * 20_000, "red " * 20_000, "rеd" * 20_000, "\u0301" * 20_000, "_" * 60_000),
        *("咖" * 20_000, "咖啡 " * 20_000, "red" + "\x00" * 60_000, "… red" * 20_000),
    ],
)
def test_an_excerpt_is_short_whatever_the_lines(line: str) -> None:
    found = find("red 咖啡", "\n".join([line] * 20))
    assert len(found.excerpt) <= 7 * len("…" + "x" * 240 + "…\n")
    assert found.end_line - found.start_line < 7


def test_the_work_on_a_line_grows_no_faster_than_its_words() -> None:
    terms = CountingTerms("red")
    recalled(Hit("/memories/a.md", "grey " * 10_000, 1.0, 1.0, None), terms)
    assert terms.looked_at <= 10_001


def test_results_are_rendered_with_numbered_lines_best_first() -> None:
    results = [
        Recalled("/memories/a.md", 1.0, "one\ntwo", 9, 10, 0.9),
        Recalled("/memories/用户.md", 0.456, "", 1, 1, 0.1, 0.8),
    ]
    assert render(results) == (
        "Memory files that match, best first:\n\n"
        "1. /memories/a.md (score 1.00)\n     9\tone\n    10\ttwo\n\n"
        "2. /memories/用户.md (score 0.46)\n     1\t"
    )


def test_no_result_says_so_and_what_to_do() -> None:
    assert render([]) == (
        "No memory file matches. Other words may find one, "
        "or view /memories to see which files there are."
    )
