"""Which paths name a place in memory, which are refused, and in what words."""

import posixpath
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hms_memory_tool.commands import parse_command
from hms_memory_tool.errors import Refused
from hms_memory_tool.paths import ROOT, is_under, is_valid, parents, parse, parse_viewed

# Every place of a path in the six commands: the input without it, and the field's name.
PATH_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "view": ({"command": "view"}, "path"),
    "create": ({"command": "create", "file_text": "x"}, "path"),
    "str_replace": ({"command": "str_replace", "old_str": "a", "new_str": "b"}, "path"),
    "insert": ({"command": "insert", "insert_line": 0, "insert_text": "x"}, "path"),
    "delete": ({"command": "delete"}, "path"),
    "rename from": ({"command": "rename", "new_path": "/memories/free"}, "old_path"),
    "rename to": ({"command": "rename", "old_path": "/memories/a"}, "new_path"),
}

TRAVERSALS = [
    # Up with two dots, at every place of a path
    "/memories/..",
    "/memories/../",
    "/memories/../x",
    "/memories/../memories/x",
    "/memories/../../etc/passwd",
    "/memories/a/..",
    "/memories/a/../b",
    "/memories/a/../../x",
    "/memories/a/b/../../../x",
    "/memories/./../x",
    "/memories//../x",
    "/..",
    "/../memories/x",
    # From elsewhere
    "../memories/x",
    "memories/../x",
    "./memories/x",
    "~/memories/x",
    "//memories/x",
    "/etc/passwd",
    "file:///memories/x",
    "C:\\memories\\x",
    # Roots that only begin with the same letters
    "/memoriesX/a",
    "/memories_backup",
    "/memories..",
    "/memories.",
    "/Memories/a",
    "memories/a",
    "",
    "/",
    # Percent-encoded, in both cases, in part and twice
    "/memories/%2e%2e/x",
    "/memories/%2E%2E/x",
    "/memories/.%2e/x",
    "/memories/%2e./x",
    "/memories/..%2fx",
    "/memories/..%2Fx",
    "/memories/..%5cx",
    "/memories/..%5Cx",
    "/memories/a%00",
    "/memories%2f..%2fx",
    # Backslashes
    "/memories\\..\\x",
    "/memories/..\\x",
    "/memories/..\\..\\x",
    "/memories/a\\b",
    # Aliases of one place
    "/memories//",
    "/memories//a",
    "/memories/a//b",
    "/memories/a//",
    "/memories/.",
    "/memories/./a",
    "/memories/a/.",
    "/memories/a/./b",
    # Hidden names
    "/memories/.hidden",
    "/memories/a/.git/config",
    "/memories/...",
    "/memories/..a",
    # Characters that cut or hide the rest of a path
    "/memories/a\x00b",
    "/memories/a\nb",
    "/memories/a\rb",
    "/memories/\t",
    "/memories/a\x1b[2K",
    "/memories/a\x7f",
    "/memories/a\x9b2K",
    "/memories/a\ud83d",
    "/memories/..\x00/x",
]

ACCEPTED = [
    # The root, and names that look odd but have one spelling
    "/memories",
    "/memories/a",
    "/memories/a/b.md",
    "/memories/notes with spaces.txt",
    "/memories/trailing.",
    "/memories/a..b",
    "/memories/~",
    "/memories/100%",
    "/memories/%41",
    "/memories/memories",
    # Other scripts, and a full-width slash that is a letter like any other
    "/memories/用户/设置.md",
    "/memories/é",
    "/memories/e\u0301",
    "/memories/a／b",
    "/memories/😀",
]

PIECES = ["a", "b.c", "..", ".", "", ".h", "\\", "%2e", "%2E", "%2f", "%5c", "%00", "中", " ", "\n"]
SPELLINGS = st.builds(
    lambda names, tail: f"{ROOT}{''.join(f'/{name}' for name in names)}{tail}",
    st.lists(st.one_of(st.sampled_from("abc"), st.sampled_from(PIECES)), max_size=5),
    st.sampled_from(["", "", "", "/", "..", "%2e", "\\"]),
)
NAMES = st.text("ab.%-_ é中😀", min_size=1, max_size=6).filter(lambda name: name[0] != ".")
ANYTHING = st.text(st.characters())


def normal_form(path: str) -> str:
    """What a file system behind a web server would make of a path."""
    decoded = re.sub(
        "%(2e|2f|5c|00)", lambda found: chr(int(found[1], 16)), path, flags=re.IGNORECASE
    )
    return posixpath.normpath(decoded.replace("\\", "/").replace("\x00", ""))


def refusal(path: str) -> str:
    with pytest.raises(Refused) as refused:
        parse(path)
    return str(refused.value)


@pytest.mark.parametrize("field", PATH_FIELDS)
@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_command_takes_a_path_that_leaves_memory_or_has_a_second_spelling(
    path: str, field: str
) -> None:
    fields, name = PATH_FIELDS[field]
    with pytest.raises(Refused):
        parse_command({**fields, name: path})


@pytest.mark.parametrize("field", PATH_FIELDS)
@pytest.mark.parametrize("path", ACCEPTED)
def test_every_command_takes_a_plain_path_as_it_is(path: str, field: str) -> None:
    fields, name = PATH_FIELDS[field]
    assert getattr(parse_command({**fields, name: path}), name) == path


@pytest.mark.parametrize("field", PATH_FIELDS)
@pytest.mark.parametrize("path", ["/memories", "/memories/a", "/memories/a/b"])
def test_only_view_drops_one_final_slash(path: str, field: str) -> None:
    fields, name = PATH_FIELDS[field]
    given_path = {**fields, name: f"{path}/"}
    if field == "view":
        assert getattr(parse_command(given_path), name) == path
    else:
        with pytest.raises(Refused):
            parse_command(given_path)
    with pytest.raises(Refused):
        parse_command({**fields, name: f"{path}//"})


@given(SPELLINGS)
def test_a_place_has_one_spelling_and_that_parses_to_itself(path: str) -> None:
    is_one_spelling = path == normal_form(path) and is_under(f"{path}/", ROOT)
    if is_one_spelling and path.isprintable() and "/." not in path:
        assert parse(path) == path
    else:
        assert not is_valid(path)


@given(st.lists(NAMES, max_size=5))
def test_plain_names_make_a_path(names: list[str]) -> None:
    path = "/".join([ROOT, *names])
    assert parse(path) == path
    assert parse_viewed(f"{path}/") == path


@given(ANYTHING | ANYTHING.map(lambda rest: f"{ROOT}/{rest}"))
def test_a_refusal_never_repeats_a_control_character_or_half_a_pair(path: str) -> None:
    if is_valid(path):
        categories = {unicodedata.category(character) for character in path}
    else:
        categories = {unicodedata.category(character) for character in refusal(path)}
    assert not categories & {"Cc", "Cs"}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        # The SDK's sentences
        ("/memoriesX/a", "Path must start with /memories, got: /memoriesX/a"),
        ("", "Path must start with /memories, got: "),
        ("/memories/../x", "Path /memories/../x would escape /memories directory"),
        ("/memories/a/..", "Path /memories/a/.. would escape /memories directory"),
    ],
)
def test_a_refusal_has_the_sentence_of_the_sdk(path: str, sentence: str) -> None:
    assert refusal(path) == sentence


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/memories/a//b", "empty name"),
        ("/memories/./a", "`.` segment"),
        ("/memories/.a", "hidden"),
        ("/memories/a\\b", "backslash"),
        ("/memories/%2Fa", "percent-encoded"),
        ("/memories/a\x00b", "position 12"),
    ],
)
def test_our_own_refusals_say_what_is_wrong(path: str, reason: str) -> None:
    assert reason in refusal(path)


@pytest.mark.parametrize(
    ("path", "size", "most"),
    [
        # A name: bytes, not characters
        (f"/memories/{'a' * 129}", 129, 128),
        (f"/memories/{'é' * 64}a", 129, 128),
        (f"/memories/{'中' * 83}", 249, 128),
        # A path
        (f"/memories/{'a' * 115}/{'b' * 115}", 241, 240),
        (f"/memories/{'é' * 60}/{'é' * 55}", 241, 240),
        # Levels
        (f"/memories{'/a' * 17}", 17, 16),
    ],
)
def test_a_path_over_a_limit_is_told_the_limit_and_its_own_size(
    path: str, size: int, most: int
) -> None:
    numbers = re.findall(r"\d+", refusal(path).rpartition(":")[2])
    assert numbers == [str(size), str(most)]


@pytest.mark.parametrize(
    "path",
    [
        f"/memories/{'a' * 128}",
        f"/memories/{'é' * 64}",
        f"/memories/{'a' * 115}/{'b' * 114}",
        f"/memories{'/a' * 16}",
    ],
)
def test_a_path_at_a_limit_is_taken(path: str) -> None:
    assert parse(path) == path


@pytest.mark.parametrize("path", [f"/memories/{'a/' * 50_000}", "x" * 100_000, "/memories/.." * 9])
def test_a_refusal_is_short_however_long_the_path(path: str) -> None:
    assert len(refusal(path)) < 500


@pytest.mark.parametrize(
    ("path", "directory", "below"),
    [
        ("/memories/a/b", "/memories/a", True),
        ("/memories/a/b/c", "/memories/a", True),
        # Siblings with the same first letters, the directory itself, and the other way round
        ("/memories/ab", "/memories/a", False),
        ("/memories/a.md", "/memories/a", False),
        ("/memories/a", "/memories/a", False),
        ("/memories", "/memories/a", False),
    ],
)
def test_only_what_follows_a_slash_is_under_a_directory(
    path: str, directory: str, below: bool
) -> None:
    assert is_under(path, directory) is below


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/memories", []),
        ("/memories/a", []),
        ("/memories/a/b", ["/memories/a"]),
        ("/memories/a/b/c", ["/memories/a/b", "/memories/a"]),
    ],
)
def test_parents_are_named_nearest_first_without_the_root(path: str, above: list[str]) -> None:
    assert parents(path) == above
