"""Memory paths: which spellings name a file or directory, and which are refused.

A path is a key of a store, never a place in a file system; one file has one spelling. The rules
are the seed's ("Safety"), the first two sentences those of Anthropic's SDK.
"""

import re

from .errors import Refused

ROOT = "/memories"
MAX_NAME_BYTES = 128
MAX_PATH_BYTES = 240
MAX_LEVELS = 16

# Cc is C0, DEL and C1; Cs is half of a UTF-16 pair, which no store can hold.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ENCODED = re.compile("%(?:2e|2f|5c|00)", re.IGNORECASE)


def parse(path: str) -> str:
    """Return `path` if it is the one spelling of a place in memory.

    Args:
        path: `/memories`, or `/memories/` and up to 16 names of at most 128 bytes, 240 bytes
            (UTF-8) in all.

    Raises:
        Refused: with the SDK's sentence where it has one, else with our own, which never repeats
            a character that cannot be printed.
    """
    if found := _UNPRINTABLE.search(path):
        raise Refused(
            "The path has a character that cannot be printed (a control character or half of a "
            f"surrogate pair) at position {found.start() + 1}. Please use printable characters."
        )
    if path != ROOT and not path.startswith(ROOT + "/"):
        raise Refused(f"Path must start with {ROOT}, got: {_clip(path)}")
    names = path.split("/")[2:]
    if ".." in names:
        raise Refused(f"Path {_clip(path)} would escape {ROOT} directory")
    if reason := _objection(path, names):
        raise Refused(f"The path {_clip(path)} is not allowed: {reason}.")
    return path


def parse_viewed(path: str) -> str:
    """Like `parse`, without one final `/`, which Claude writes after directories it views."""
    return parse(path[:-1] if path.startswith(ROOT) and path.endswith("/") else path)


def is_valid(path: str) -> bool:
    """Whether `parse` takes it."""
    try:
        parse(path)
    except Refused:
        return False
    return True


def is_under(path: str, directory: str) -> bool:
    """Whether `path` lies below `directory`: `/memories/ab` is not below `/memories/a`."""
    return path.startswith(directory + "/")


def parents(path: str) -> list[str]:
    """The directories above a file, nearest first, without the root."""
    names = path.split("/")
    return ["/".join(names[:end]) for end in range(len(names) - 1, 2, -1)]


def _objection(path: str, names: list[str]) -> str | None:
    if "" in names:
        return "it has an empty name between slashes or at its end"
    if "." in names:
        return "it has a `.` segment"
    if any(name.startswith(".") for name in names):
        return "hidden names, which begin with a dot, are not kept in memory"
    if "\\" in path:
        return "it has a backslash; names are separated by `/`"
    if _ENCODED.search(path):
        return "it has a percent-encoded dot, slash, backslash or NUL; write the plain character"
    return _excess(path, names)


def _excess(path: str, names: list[str]) -> str | None:
    if (longest := max(map(_utf8_bytes, names), default=0)) > MAX_NAME_BYTES:
        return f"it has a name of {longest} bytes, and a name is at most {MAX_NAME_BYTES} bytes"
    if (size := _utf8_bytes(path)) > MAX_PATH_BYTES:
        return f"it is {size} bytes long, and a path is at most {MAX_PATH_BYTES} bytes"
    if len(names) > MAX_LEVELS:
        return f"it is {len(names)} levels deep, and a path has at most {MAX_LEVELS} levels"
    return None


def _utf8_bytes(text: str) -> int:
    return len(text.encode())


def _clip(path: str) -> str:
    """Keep an answer short however long the path that it speaks of."""
    return path if len(path) <= MAX_PATH_BYTES else f"{path[:MAX_PATH_BYTES]}…"
