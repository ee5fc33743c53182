"""The text that the commands show and change: lines, ranges, pages, edits and sizes."""

import math
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hms_memory_tool.errors import Refused
from hms_memory_tool.text import (
    check_size,
    human_size,
    insert_after,
    lines_of,
    replace_once,
    snippet,
    view_directory,
    view_file,
)

PATH = "/memories/a.md"
# Every character that some splitter takes for the end of a line, and Unicode's White_Space
SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
WHITE_SPACE = [
    *(chr(code) for code in [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]),
    *"\u2028\u2029\u202f\u205f\u3000",
]
SHORT_LINES = st.lists(st.text(f"ab{SEPARATORS}\t é中😀", max_size=4), max_size=9)
TEXTS = SHORT_LINES.map("\n".join) | st.sampled_from(["", "\n", "\n\n"]) | st.text()
SIMPLE = st.lists(st.text("ab", max_size=2), max_size=9).map("\n".join) | st.text("a", max_size=5)
NOTE = re.compile(r"\[Cut after line (\d+) of (\d+) .* with view_range \[(\d+), (\d+)\]\.\]")


def numbered(lines: list[str], first: int = 1) -> str:
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


@given(TEXTS)
def test_lines_end_at_newlines_alone_and_join_to_the_same_text(text: str) -> None:
    lines = lines_of(text)
    assert "\n".join(lines) + ("\n" if text.endswith("\n") else "") == text
    assert len(lines) == text.count("\n") + (text != "" and not text.endswith("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(("", [""]), ("\n", [""]), ("\n\n", ["", ""]), ("a", ["a"]), ("a\n", ["a"])),
        # Only a newline ends a line
        *(("a\x0cb\u2028c\x85d\r\n2\n", ["a\x0cb\u2028c\x85d\r", "2"]), ("a\rb", ["a\rb"])),
    ],
)
def test_a_file_is_shown_with_numbered_lines(text: str, shown: list[str]) -> None:
    rows = numbered(shown)
    told = f"Here's the content of /memories/a.md with line numbers:\n{rows}"
    assert view_file(PATH, text, None, len(rows)) == told


def pages(text: str, view_range: object, max_chars: int) -> Iterator[list[tuple[int, str]]]:
    """Follow the notes as Claude would; a page more than there are lines is one too many."""
    for _ in range(max(len(lines_of(text)), 1)):
        *shown, last = view_file(PATH, text, view_range, max_chars).split("\n")[1:]
        note = NOTE.fullmatch(last)
        page = shown[:-1] if note else [*shown, last]
        assert len("\n".join(page)) <= max_chars or len(page) == 1
        yield [(int(line[:6]), line[7:]) for line in page]
        if note is None:
            return
        assert (int(note[1]), int(note[3])) == (int(page[-1][:6]), int(page[-1][:6]) + 1)
        view_range = [int(note[3]), int(note[4])]
    pytest.fail("the notes do not come to an end")


@given(TEXTS, st.integers(1, 60), st.data())
def test_following_the_notes_shows_every_line_once_and_ends(
    text: str, max_chars: int, data: st.DataObject
) -> None:
    lines = lines_of(text) or [""]
    pair = st.lists(st.integers(1, len(lines)), min_size=2, max_size=2).map(sorted)
    start, end = data.draw(pair | st.just([1, len(lines)]))
    shown = list(pages(text, [start, end], max_chars))
    assert list(chain(*shown)) == list(enumerate(lines, 1))[start - 1 : end]
    for page, following in pairwise(shown):  # and no page is shorter than it has to be
        assert len(numbered([line for _, line in [*page, following[0]]])) > max_chars


@pytest.mark.parametrize(
    ("view_range", "first", "last"),
    [
        *((None, 1, 5), ([1, -1], 1, 5), ([5, -1], 5, 5), ([2, 3], 2, 3), ([5, 5], 5, 5)),
        # Beyond either end
        *(([2, 99], 2, 5), ([0, 3], 1, 3), ([-2, -1], 1, 5), ([-7, 1], 1, 1)),
        # JSON from a language without integers
        ([2.0, 4.0], 2, 4),
    ],
)
def test_a_range_shows_its_lines(view_range: object, first: int, last: int) -> None:
    shown = view_file(PATH, "a\nb\nc\nd\ne\n", view_range, 16_000).split("\n", 1)[1]
    assert shown == numbered(list("abcde")[first - 1 : last], first)


@pytest.mark.parametrize(
    "view_range",
    [
        # Nothing to show
        *([6, -1], [6, 6], [3, 2], [1, 0], [0, 0], [1, -2], [5, -3]),
        # No two whole numbers
        *([], [1], [1, 2, 3], ["1", "2"], [1, None], [1.5, 2], [True, 2], [math.nan, 2]),
        *([1, math.inf], [[1], [2]], "12", 5, True, {"1": 2}, {}),
    ],
)
def test_a_range_that_is_none_is_told_the_lines_there_are(view_range: object) -> None:
    with pytest.raises(Refused, match=re.escape("[1, 5]")):
        view_file(PATH, "a\nb\nc\nd\ne\n", view_range, 16_000)


def test_a_file_has_at_most_999_999_lines() -> None:
    assert view_file(PATH, "\n" * 999_999, [999_999, -1], 99).endswith("\n999999\t")
    with pytest.raises(Refused, match="maximum line limit of 999,999 lines"):
        view_file(PATH, "\n" * 1_000_000, [1, 1], 99)


def replaced(text: str, old: str, new: str) -> tuple[str, str]:
    """The new text and the snippet that is shown of it."""
    changed, line = replace_once(PATH, text, old, new, 16_000)
    return changed, snippet(changed, line)


def naive_replace(text: str, old: str, new: str) -> tuple[str, str] | str:
    """The new text and its snippet, or the sentence of the refusal."""
    starts = [at for at in range(len(text)) if old and text[at : at + len(old)] == old]
    apart = [at for at in starts if at >= starts[0] + len(old)]
    if not starts:
        return f"No replacement was performed, old_str `{old}` did not appear verbatim in {PATH}."
    if apart:
        where = ", ".join(str(len(text[:at].split("\n"))) for at in starts)
        return (
            f"No replacement was performed. Multiple occurrences of old_str `{old}` "
            f"in lines: {where}. Please ensure it is unique"
        )
    before, after = text[: starts[0]], text[starts[0] + len(old) :]
    lines = (before + new + after).removesuffix("\n").split("\n")
    line = before.count("\n") + 1
    rows = numbered(lines[max(line - 3, 0) : line + 2], max(line - 2, 1))
    head = "The memory file has been edited. Here is the snippet showing the change "
    return before + new + after, f"{head}(with line numbers):\n{rows}"


@example("aaaa", "aa", "x")
@given(SIMPLE, st.text("ab\n", max_size=3), TEXTS)
def test_a_replacement_is_of_the_only_occurrence_or_refused(text: str, old: str, new: str) -> None:
    try:
        told: tuple[str, str] | str = replaced(text, old, new)
    except Refused as refused:
        told = str(refused)
    assert told == naive_replace(text, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # What replacement functions expand, and what regular expressions take for syntax
        ("TOTAL", "price $& $$ $1 \\1 \\g<0> $' $` \\n {0} %s"),
        *((pattern, "x") for pattern in ("a.b(c)*[", "^$", ".*", "\\d+", "[", "(?i)", "\\")),
        # Unlike normalising, `\r` and other separators stay as they are
        *(("b\r\nc", "b\nc"), ("\u2028", "\n"), ("\r", "")),
    ],
)
def test_a_replacement_is_literal(old: str, new: str) -> None:
    changed, _ = replace_once(PATH, f"first\r\n{{{old}}}\x85last", f"{{{old}}}", new, 16_000)
    assert changed == f"first\r\n{new}\x85last"


@pytest.mark.parametrize("text", ["a" * 65_536, "a\n" * 30_000])
@pytest.mark.parametrize("max_chars", [100, 16_000])
def test_the_list_of_occurrences_is_kept_short(text: str, max_chars: int) -> None:
    with pytest.raises(Refused) as refused:
        replace_once(PATH, text, "a", "x", max_chars)
    listed, more, _ = str(refused.value).rpartition("in lines: ")[2].partition(" and more")
    assert (more, len(listed) <= max_chars) == (" and more", True)


@given(TEXTS, TEXTS, st.data())
def test_an_insert_changes_nothing_outside(text: str, inserted: str, data: st.DataObject) -> None:
    whole = text if text.endswith("\n") or not text else f"{text}\n"
    offsets = [0, *(at + 1 for at, character in enumerate(whole) if character == "\n")]
    line = data.draw(st.integers(0, len(offsets) - 1))
    outside = (whole[: offsets[line]], whole[offsets[line] :])
    if text == "\n" and line == 0:
        outside = ("", "")  # the SDK's exception: the empty line gives way
    own = inserted.rstrip("\n") + "\n"
    assert insert_after(text, line, inserted) == own.join(outside)


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb"], ids=["newline", "no newline"])
@pytest.mark.parametrize(
    ("line", "inserted", "expected"),
    [
        *((0, "X\n", "X\na\nb\n"), (0, "X", "X\na\nb\n"), (0, "\n\n", "\na\nb\n")),
        *((0, "", "\na\nb\n"), (1, "X\n", "a\nX\nb\n"), (1, "X", "a\nX\nb\n")),
        *((1, "\n\n", "a\n\nb\n"), (1, "", "a\n\nb\n"), (2, "X\n", "a\nb\nX\n")),
        *((2, "X", "a\nb\nX\n"), (2, "\n\n", "a\nb\n\n"), (2, "", "a\nb\n\n")),
    ],
)
def test_inserted_text_is_whole_lines(text: str, line: int, inserted: str, expected: str) -> None:
    assert insert_after(text, line, inserted) == expected


@pytest.mark.parametrize(
    ("text", "line", "last"), [("1\n2\n", 3, 2), ("1\n2", 3, 2), ("1\n", -1, 1), ("", 1, 0)]
)
def test_a_line_that_is_not_there_is_told_the_range(text: str, line: int, last: int) -> None:
    told = rf"parameter: {line}\. It should be within .* lines of the file: \[0, {last}\]$"
    with pytest.raises(Refused, match=told):
        insert_after(text, line, "x")


NAMES = st.sampled_from(["a", "B", "ab", "a.b", "中", ".h", "node_modules"])
FILES = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
TREES = st.dictionaries(FILES, st.integers(0, 5_000), max_size=12)


def naive_listing(path: str, files: dict[str, int], levels: int = 2) -> list[str]:
    """Level by level, each size added up again from all the files below."""
    rows: list[str] = []
    for name, slash in sorted({file[len(path) + 1 :].partition("/")[:2] for file in files}):
        here = f"{path}/{name}"
        below = {file: size for file, size in files.items() if f"{file}/".startswith(f"{here}/")}
        if name[0] != "." and name != "node_modules":
            rows.append(f"{human_size(sum(below.values()))}\t{here}{slash}")
            rows += naive_listing(here, below, levels - 1) if slash and levels > 1 else []
    return rows


@given(TREES, st.sampled_from(["/memories", "/memories/node_modules/.b"]), st.integers(1, 200))
def test_a_directory_lists_two_levels_as_far_as_they_fit(
    tree: dict[str, int], path: str, max_chars: int
) -> None:
    files = {
        f"{path}/{file}": size
        for file, size in tree.items()
        if not any(other.startswith(f"{file}/") for other in tree)  # no file is a directory too
    }
    head = (
        f"Here're the files and directories up to 2 levels deep in {path}, "
        f"excluding hidden items and node_modules:\n{human_size(sum(files.values()))}\t{path}"
    )
    rows = naive_listing(path, files)
    assert view_directory(path, list(files.items()), 16_000) == "\n".join([head, *rows])
    view, _, note = view_directory(path, list(files.items()), max_chars).partition("\n\n[")
    shown = view.removeprefix(head).split("\n")[1:]
    assert shown == rows[: len(shown)]
    assert len("\n".join(shown)) <= max_chars or len(shown) == 1
    left = len(rows) - len(shown)
    assert re.match(rf"{left} more .* subdirectory", note) if left else note == ""


@pytest.mark.parametrize(
    ("size", "written"),
    [
        *((0, "0B"), (1_023, "1023B"), (1_024, "1K"), (1_025, "1.0K"), (1_076, "1.1K")),
        *((5_632, "5.5K"), (1_048_575, "1024.0K"), (1 << 20, "1M"), (1 << 30, "1G")),
    ],
)
def test_a_size_is_written_as_du_writes_it(size: int, written: str) -> None:
    assert human_size(size) == written


@given(st.integers(0, 1 << 45))
def test_a_written_size_is_right_to_half_a_tenth(size: int) -> None:
    written = human_size(size)
    unit = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[written[-1]]
    assert abs(Fraction(written[:-1]) - Fraction(size, unit)) <= Fraction(1, 20)
    assert ("." in written) is (size % unit != 0)


def excess(text: str, max_bytes: int = sys.maxsize) -> list[str]:
    """The size and the limit in the sentence."""
    with pytest.raises(Refused, match=r"Nothing was written\. .* into several files") as told:
        check_size(PATH, text, max_bytes)
    return re.findall(r"\d+ (?:bytes|words)", str(told.value))


@pytest.mark.parametrize("text", ["a" * 12, "é" * 6, "中" * 4, "😀" * 3, "\n" * 12])
def test_a_file_is_measured_in_bytes(text: str) -> None:
    check_size(PATH, text, 12)
    assert excess(text, 11) == ["12 bytes", "11 bytes"]


@pytest.mark.parametrize("separator", WHITE_SPACE)
@pytest.mark.parametrize("word", ["a", "中", "a\x1cb\x1f"])
def test_a_file_has_at_most_4_096_words(word: str, separator: str) -> None:
    check_size(PATH, separator.join([word] * 4_096) + separator * 2, sys.maxsize)
    assert excess(separator.join([word] * 4_097)) == ["4097 words", "4096 words"]


def test_nothing_but_white_space_separates_words() -> None:
    codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]
    one_word = "".join(chr(code) for code in codes if chr(code) not in WHITE_SPACE)
    check_size(PATH, one_word + " a" * 4_095, sys.maxsize)
    assert excess(one_word + " a" * 4_096) == ["4097 words", "4096 words"]
