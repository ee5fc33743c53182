"""The text that the commands show and change. Pure: str in, str out.

Lines are separated by `\\n` alone, and nothing outside an edit ever changes: `\\r`, form feeds
and Unicode's other separators are characters like any other.
"""

import re
from collections.abc import Sequence

from .errors import Refused

MAX_LINES = 999_999  # what a 6-wide column of line numbers can hold; the SDK has the same limit
MAX_WORDS = 4_096  # one storage chunk of the engine
MAX_BLANKS = 10_000  # the engine keeps those around a text apart, escaped, in a narrower place
_SNIPPET_LINES = 2
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
# The engine's notion of a word: separated by Unicode's White_Space. str.split() differs from it
# in four control characters (U+001C to U+001F).
_WORD = re.compile("[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def lines_of(text: str) -> list[str]:
    """The lines of a file; a final `\\n` adds none, an empty file has none."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def whole_number(value: object) -> int | None:
    """An int, or a float without a fraction (JSON knows no difference), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def view_file(path: str, text: str, view_range: object, max_chars: int) -> str:
    """The numbered lines of a file, or of a part of it, at most about `max_chars` of them.

    Args:
        path: the file's path, for the first line of the answer and for errors.
        text: the whole file.
        view_range: None, `[start, end]` or `[start, -1]`, lines counted from 1; a start below 1
            is 1 and an end past the last line is the last line.
        max_chars: characters after which the answer ends at a line boundary, with a note naming
            the range to go on with. A line longer than that is shown whole, so that whoever
            follows the notes always gets further.

    Raises:
        Refused: the range is no range of this file, or the file has over 999,999 lines.
    """
    lines = lines_of(text) or [""]
    if len(lines) > MAX_LINES:
        raise Refused(f"File {path} exceeds maximum line limit of {MAX_LINES:,} lines.")
    start, end = _range(view_range, len(lines))
    shown = _numbered(lines[start - 1 : end], start)
    kept = _fitting(shown, max_chars)
    view = "\n".join([f"Here's the content of {path} with line numbers:", *shown[:kept]])
    if kept == len(shown):
        return view
    return (
        f"{view}\n\n[Cut after line {start + kept - 1} of {len(lines)} to keep this view short. "
        f"To read on, view {path} with view_range [{start + kept}, {end}].]"
    )


def view_directory(path: str, files: Sequence[tuple[str, int]], max_chars: int) -> str:
    """Two levels of a directory with the size of everything in them.

    Args:
        path: the directory.
        files: path and size in bytes of every file below it, however deep.
        max_chars: characters after which the listing ends at a line boundary and says how many
            entries are left.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for file, size in files:
        names = file[len(path) + 1 :].split("/")
        for depth in range(1, min(len(names), 3)):
            directory = (*names[:depth], "")
            sizes[directory] = sizes.get(directory, 0) + size
        if len(names) <= 2:
            sizes[tuple(names)] = size
    listed = [_entry(path, names, sizes[names]) for names in sorted(sizes) if _is_listed(names)]
    kept = _fitting(listed, max_chars)
    head = (
        f"Here're the files and directories up to 2 levels deep in {path}, "
        "excluding hidden items and node_modules:"
    )
    total = f"{human_size(sum(size for _, size in files))}\t{path}"
    view = "\n".join([head, total, *listed[:kept]])
    if kept == len(listed):
        return view
    left = len(listed) - kept
    return (
        f"{view}\n\n[{left} more {'entry is' if left == 1 else 'entries are'} not shown, to keep "
        "this view short. View a subdirectory to see what is in it.]"
    )


def replace_once(path: str, text: str, old: str, new: str, max_chars: int) -> tuple[str, int]:
    """Put `new` in the place of the only `old`; return the new text and its first changed line.

    Lines are counted from 0.

    Raises:
        Refused: `old` is empty, is not there, or is there more than once; the sentence lists the
            lines where each occurrence starts, as far as `max_chars` characters go.
    """
    count = text.count(old) if old else 0
    if count == 0:
        raise Refused(
            f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
        )
    if count > 1:
        raise Refused(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` "
            f"in lines: {_occurrences(text, old, max_chars)}. Please ensure it is unique"
        )
    at = text.index(old)
    return text[:at] + new + text[at + len(old) :], text.count("\n", 0, at)


def snippet(text: str, line: int) -> str:
    """What `str_replace` answers: the lines around `line` (from 0), as `view` numbers them."""
    first = max(line - _SNIPPET_LINES, 0)
    around = (lines_of(text) or [""])[first : line + _SNIPPET_LINES + 1]
    head = (
        "The memory file has been edited. "
        "Here is the snippet showing the change (with line numbers):"
    )
    return "\n".join([head, *_numbered(around, first + 1)])


def insert_after(text: str, line: int, inserted: str) -> str:
    """Put whole lines after line `line` (0 is the top); the file ends with a newline afterwards.

    Raises:
        Refused: there is no such line; the sentence names the valid range.
    """
    lines = lines_of(text)
    if not 0 <= line <= len(lines):
        raise Refused(
            f"Invalid `insert_line` parameter: {line}. "
            f"It should be within the range of lines of the file: [0, {len(lines)}]"
        )
    if text == "\n" and line == 0:
        lines = []  # as in the SDK, text put before nothing but an empty line takes its place
    lines.insert(line, inserted.rstrip("\n"))
    return "".join(f"{one}\n" for one in lines)


def check_size(path: str, text: str, max_bytes: int) -> None:
    """Refuse a text that the engine would not keep whole.

    Args:
        path: the file, for the sentence.
        text: what it would hold.
        max_bytes: the limit on its UTF-8 bytes; that on words is the engine's 4,096.

    Raises:
        Refused: it names the limit, the size, and the way out.
    """
    if (size := len(text.encode())) > max_bytes:
        excess = f"be {size} bytes, and a file is at most {max_bytes} bytes"
    elif len(text) > 2 * MAX_WORDS and (words := len(_WORD.findall(text))) > MAX_WORDS:
        excess = f"have {words} words, and a file has at most {MAX_WORDS} words"
    elif (blanks := _blanks(text)) > MAX_BLANKS:
        excess = f"have {blanks} blank characters at its ends, and {MAX_BLANKS} are kept at most"
    else:
        return
    raise Refused(
        f"The file {path} would {excess}. Nothing was written. "
        "Please split the content into several files."
    )


def _blanks(text: str) -> int:
    return len(text) - len(text.strip())


def human_size(size: int) -> str:
    """Bytes as `du -h` would write them: `0B`, `1023B`, `1K`, `5.5K`, `1M`."""
    for unit, letter in _UNITS:
        if size >= unit:
            tenths = (size * 10 + unit // 2) // unit
            whole = size % unit == 0
            return f"{size // unit}{letter}" if whole else f"{tenths // 10}.{tenths % 10}{letter}"
    return f"{size}B"


def _range(view_range: object, line_count: int) -> tuple[int, int]:
    if view_range is None:
        return 1, line_count
    numbers = [whole_number(one) for one in view_range] if isinstance(view_range, list) else []
    match numbers:
        case [int(start), int(end)]:
            first, last = max(start, 1), line_count if end == -1 else min(end, line_count)
            if first <= last:
                return first, last
            raise Refused(
                f"Invalid `view_range` parameter: [{start}, {end}]. It should be within the range "
                f"of lines of the file: [1, {line_count}], the first number not above the second, "
                "which may be -1 for the last line."
            )
    raise Refused(
        "Invalid `view_range` parameter: it should be two whole numbers, the first and the last "
        f"line to view, within [1, {line_count}]; the second may be -1 for the last line."
    )


def _numbered(lines: Sequence[str], first: int) -> list[str]:
    return [f"{number:6d}\t{line}" for number, line in enumerate(lines, first)]


def _fitting(lines: Sequence[str], max_chars: int) -> int:
    """How many lines fit, at least one."""
    used = 0
    for count, line in enumerate(lines):
        used += len(line) + 1
        if used > max_chars + 1 and count > 0:
            return count
    return len(lines)


def _is_listed(names: tuple[str, ...]) -> bool:
    return not any(name == "node_modules" or name.startswith(".") for name in names)


def _entry(path: str, names: tuple[str, ...], size: int) -> str:
    return f"{human_size(size)}\t{path}/{'/'.join(names)}"


def _occurrences(text: str, old: str, max_chars: int) -> str:
    # A bound on the work as well as on the answer: one letter can occur 65,536 times.
    lines: list[str] = []
    at, line, counted, used = text.find(old), 1, 0, 0
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        used += len(f"{line}, ")
        if used > max_chars and len(lines) > 1:
            return ", ".join(lines) + " and more"
        lines.append(str(line))
        at = text.find(old, at + 1)
    return ", ".join(lines)
