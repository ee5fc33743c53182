"""Sizes at their limits, long answers, many files: over HTTP, against the real engine."""

import re

import pytest

from hms_memory_tool.text import human_size

from .conftest import Client, Serve

WORDS = "w " * 4_095 + "w"


@pytest.mark.parametrize(
    ("fits", "exceeds", "said"),
    [
        ("x" * 32_768, "x" * 32_769, ["32769 bytes", "32768 bytes"]),
        ("é" * 16_384, "é" * 16_385, ["32770 bytes", "32768 bytes"]),
        (WORDS, WORDS + " w", ["4097 words", "4096 words"]),
        ("\n" * 8_000 + WORDS, "\u3000".join(["w"] * 4_097), ["4097 words", "4096 words"]),
    ],
)
def test_a_file_at_the_limit_is_kept_and_one_more_is_refused(
    client: Client, fits: str, exceeds: str, said: list[str]
) -> None:
    assert client.command("create", path="/memories/fits", file_text=fits)[0]
    is_ok, text = client.command("create", path="/memories/exceeds", file_text=exceeds)
    assert not is_ok
    assert all(part in text for part in (*said, "/memories/exceeds", "several files"))
    assert not client.command("view", path="/memories/exceeds")[0]
    # an edit that would cross the limit leaves the file as it was
    is_ok, text = client.command(
        "insert", path="/memories/fits", insert_line=0, insert_text="one more word"
    )
    assert not is_ok
    assert "several files" in text
    listing = client.command("view", path="/memories")[1]
    assert listing.endswith(f"\n{human_size(len(fits.encode()))}\t/memories/fits")


@pytest.mark.parametrize("blank", ["\n", "\t", "\x0b", "\u3000"])
def test_blanks_around_a_text_have_a_limit_of_their_own(client: Client, blank: str) -> None:
    """The engine keeps them apart, escaped, in its metadata, and fails where they are too many."""
    assert client.command("create", path="/memories/fits", file_text=blank * 9_999 + "a\n")[0]
    for text in (blank * 10_001, "a" + blank * 10_001, blank * 5_001 + "a" + blank * 5_001):
        is_ok, said = client.command("create", path="/memories/a", file_text=text)
        assert (is_ok, "10000 are kept" in said) == (False, True)


def test_words_that_python_would_split_and_the_engine_does_not(client: Client) -> None:
    """U+001C to U+001F separate no words for the engine: 8,192 here are 4,096."""
    text = " ".join(["a\x1cb"] * 4_096)
    assert client.command("create", path="/memories/a", file_text=text)[0]
    assert not client.command("create", path="/memories/b", file_text=text + " c")[0]


def test_str_replace_over_the_word_limit_changes_nothing(client: Client) -> None:
    client.command("create", path="/memories/a", file_text=WORDS + " end")  # 4,097: refused
    client.command("create", path="/memories/a", file_text=WORDS[:-1] + "end")
    is_ok, text = client.command(
        "str_replace", path="/memories/a", old_str="end", new_str="two words"
    )
    assert not is_ok
    assert "4097 words" in text
    assert client.command("str_replace", path="/memories/a", old_str="end", new_str="fin")[0]


def test_the_operator_can_lower_the_limit_and_not_raise_it(serve: Serve) -> None:
    with serve(max_file_bytes=10) as gateway:
        client = gateway.client()
        assert client.command("create", path="/memories/a", file_text="x" * 10)[0]
        assert "10 bytes" in client.command("create", path="/memories/b", file_text="x" * 11)[1]
    with serve(max_file_bytes=1_000_000) as gateway:
        client = gateway.client()
        assert client.command("create", path="/memories/a", file_text="x" * 32_768)[0]
        is_ok, text = client.command("create", path="/memories/b", file_text="x" * 32_769)
        assert (is_ok, "32768 bytes" in text) == (False, True)


def test_the_engine_can_be_given_a_higher_limit(serve: Serve) -> None:
    with serve(hms_args="--max-text-bytes 65536 --dim 256") as gateway:
        client = gateway.client()
        assert client.command("create", path="/memories/a", file_text="x" * 65_536)[0]
        assert not client.command("create", path="/memories/b", file_text="x" * 65_537)[0]


def followed(client: Client, path: str) -> tuple[list[str], int]:
    """Read a file as Claude would: by following the notes. The lines, and the views it took."""
    lines: list[str] = []
    views = 0
    asked: dict[str, object] = {}
    while True:
        is_ok, text = client.command("view", path=path, **asked)
        assert is_ok, text
        views += 1
        body, _, note = text.partition("\n\n[")
        shown = body.split("\n")[1:]
        assert [int(line[:6]) for line in shown] == list(
            range(len(lines) + 1, len(lines) + len(shown) + 1)
        )
        lines += [line[7:] for line in shown]
        found = re.search(r"view_range \[(\d+), (\d+)\]", note)
        if found is None:
            return lines, views
        assert int(found[1]) == len(lines) + 1
        asked = {"view_range": [int(found[1]), int(found[2])]}


@pytest.mark.parametrize(
    "lines",
    [
        [f"line-{number}-of-many" for number in range(1_500)],
        ["short", "x" * 20_000, "short", "y" * 10_000, "end"],
        ["z" * 32_000],
        ["a"] * 4_000,
    ],
)
def test_a_long_file_is_read_to_its_end_by_following_the_notes(
    client: Client, lines: list[str]
) -> None:
    assert client.command("create", path="/memories/a", file_text="\n".join(lines) + "\n")[0]
    seen, views = followed(client, "/memories/a")
    assert seen == lines
    assert views > 1 or len(lines) == 1
    assert len(client.command("view", path="/memories/a")[1]) < max(17_000, len(lines[0]) + 200)


def test_many_files_are_all_listed_moved_and_deleted(serve: Serve) -> None:
    """More than a page of the engine; sizes are those of the texts, not of previews."""
    with serve(max_view_chars=200_000) as gateway:
        client = gateway.client()
        paths = [f"/memories/d/{number:04}" for number in range(1_005)]
        for path in paths:
            assert client.command("create", path=path, file_text="x" * 300)[0]
        assert client.command("create", path="/memories/dd", file_text="stays")[0]
        listed = client.command("view", path="/memories/d")[1].split("\n")[2:]
        assert listed == [f"300B\t{path}" for path in paths]
        assert client.command("rename", old_path="/memories/d", new_path="/memories/e")[0]
        assert len(client.command("view", path="/memories/e")[1].split("\n")) == 1_007
        assert not client.command("view", path="/memories/d")[0]
        assert client.command("delete", path="/memories/e")[0]
        listing = client.command("view", path="/memories")[1]
        assert listing.endswith("\n5B\t/memories\n5B\t/memories/dd")


def test_a_listing_that_is_too_long_says_what_is_left(serve: Serve) -> None:
    with serve(max_view_chars=500) as gateway:
        client = gateway.client()
        for number in range(40):
            client.command("create", path=f"/memories/d/{number:02}", file_text="x")
        text = client.command("view", path="/memories")[1]
        body, note = text.split("\n\n[")
        shown = len(body.split("\n")) - 2
        assert note.startswith(f"{41 - shown} more entries")
        assert "subdirectory" in note


def test_an_answer_about_many_occurrences_is_not_endless(client: Client) -> None:
    client.command("create", path="/memories/a", file_text="a" * 32_768)
    is_ok, text = client.command("str_replace", path="/memories/a", old_str="a", new_str="b")
    assert not is_ok
    assert text.startswith("No replacement was performed. Multiple occurrences of old_str `a`")
    assert len(text) < 20_000
