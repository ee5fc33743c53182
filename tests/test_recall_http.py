"""Recall over the real engine: ranks, excerpts, and follows every change at once."""

import pytest

from hms_memory_tool.recall import Terms, recalled
from hms_memory_tool.store import Hit

from .conftest import Client, Gateway


def paths(client: Client, query: str, k: int = 5) -> list[str]:
    return [result["path"] for result in client.recall(query, k)]


def test_recall_ranks_the_best_file_first_and_shows_its_lines(client: Client) -> None:
    notes = {
        "/memories/acme.md": "# Acme\n\nBudget: 5.\nPrefers email follow-ups on Mondays.\nDone.\n",
        "/memories/beta.md": "# Beta\nPrefers a call.\n",
        "/memories/misc.md": "Buy milk.\n",
    }
    for path, text in notes.items():
        assert client.command("create", path=path, file_text=text)[0]
    results = client.recall("How does Acme prefer following up, by email?")
    assert [result["path"] for result in results] == ["/memories/acme.md", "/memories/beta.md"]
    best = results[0]
    assert best["score"] == 1.0
    assert best["lexical_score"] > results[1]["lexical_score"]
    lines = notes["/memories/acme.md"].split("\n")
    assert best["excerpt"].split("\n") == lines[best["start_line"] - 1 : best["end_line"]]
    assert "Prefers email follow-ups" in best["excerpt"]


def test_recall_follows_edit_rename_and_delete_at_once(client: Client) -> None:
    client.command("create", path="/memories/pets/cat.md", file_text="cat Whiskers\n")
    assert paths(client, "Whiskers") == ["/memories/pets/cat.md"]
    client.command(
        "str_replace", path="/memories/pets/cat.md", old_str="cat Whiskers", new_str="dog Rex"
    )
    assert (paths(client, "Whiskers"), paths(client, "Rex")) == ([], ["/memories/pets/cat.md"])
    client.command("insert", path="/memories/pets/cat.md", insert_line=0, insert_text="canary Pip")
    assert paths(client, "Pip") == ["/memories/pets/cat.md"]
    client.command("rename", old_path="/memories/pets", new_path="/memories/animals")
    assert paths(client, "Rex") == ["/memories/animals/cat.md"]
    client.command("rename", old_path="/memories/animals/cat.md", new_path="/memories/dog.md")
    assert paths(client, "Rex") == ["/memories/dog.md"]
    client.command("delete", path="/memories/dog.md")
    assert (paths(client, "Rex"), paths(client, "Pip")) == ([], [])


def test_recall_returns_at_most_k(client: Client) -> None:
    for number in range(60):
        client.command("create", path=f"/memories/{number}", file_text=f"apple {number}")
    assert len(paths(client, "apple", 3)) == 3
    assert len(paths(client, "apple", 50)) == 50
    assert len(client.post("/memory/recall", {"query": "apple", "k": None}).json()["results"]) == 5


@pytest.mark.parametrize(
    "query",
    [
        "DO NOT USE FIND /",
        '"unbalanced',
        "C++ (x",
        "don't",
        "a/b",
        "@tag #x 50%",
        "x" * 4_096,
        "中" * 1_365,
        "nul \x00 char",
        "title:foo AND (bar OR baz*) -qux",
        "[[[",
    ],
)
def test_any_words_are_plain_words(client: Client, query: str) -> None:
    client.command("create", path="/memories/a", file_text="nothing of the kind\n")
    answer = client.post("/memory/recall", {"query": query})
    assert answer.status_code == 200
    assert answer.json()["is_error"] is False


def test_a_recall_of_many_words_has_its_work_bounded() -> None:
    """Each word is stemmed once, and of one text only so many: others wait meanwhile."""
    query = " ".join(f"{letter}word" for letter in "abcdefghijklmnopqrstuvwxyz")
    terms = Counting(query)
    before = terms.stemmed
    for text in range(3):
        words = " ".join(f"{chr(97 + number % 26)}{number}x{text}" for number in range(5_000))
        recalled(Hit("/memories/a", words, 1.0, 1.0, None), terms)
    assert terms.stemmed - before <= 3 * 500


class Counting(Terms):
    """Counts what costs most."""

    stemmed = 0

    def _stem(self, word: str) -> str:
        known = len(self._known)
        stem = super()._stem(word)
        self.stemmed += len(self._known) - known
        return stem


def test_no_match_is_said_in_words(client: Client) -> None:
    body = client.post("/memory/recall", {"query": "anything"}).json()
    assert body["results"] == []
    assert body["content"].startswith("No memory file matches.")


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("用户喜欢喝咖啡，不喜欢茶\n", "咖啡"),
        ("用户喜欢喝咖啡，不喜欢茶\n", "茶"),
        ("用户喜欢喝咖啡，不喜欢茶\n", "他喜欢喝什么"),
        ("猫の名前はタマです\n", "タマ"),
        ("猫の名前はタマです\n", "猫の名前は何ですか"),
        ("고양이이름은나비\n", "나비"),
        ("Likes 咖啡 a lot\n", "咖啡"),
    ],
)
def test_words_inside_text_without_spaces_are_found(client: Client, text: str, query: str) -> None:
    client.command("create", path="/memories/other", file_text="犬は庭にいた\nnothing\n")
    client.command("create", path="/memories/a", file_text=f"first line\n{text}last line\n")
    best = client.recall(query)[0]
    assert best["path"] == "/memories/a"
    assert text.strip() in best["excerpt"]


def test_a_mixed_query_finds_both_kinds(client: Client) -> None:
    client.command("create", path="/memories/zh", file_text="会议在周三\n")
    client.command("create", path="/memories/en", file_text="The meeting is on Wednesday\n")
    assert set(paths(client, "meeting 周三")) == {"/memories/zh", "/memories/en"}
    client.command("delete", path="/memories/zh")
    assert paths(client, "meeting 周三") == ["/memories/en"]


def test_a_query_of_one_namespace_finds_nothing_of_another(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    one.command("create", path="/memories/a", file_text="unique咖啡 token")
    assert paths(two, "unique token") == paths(two, "咖啡") == []
