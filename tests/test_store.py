"""The store over a real hms-mcp: what each method sends and what it makes of the answer."""

from collections.abc import Mapping
from typing import Any

import pytest

from hms_memory_tool.errors import (
    AlreadyExists,
    ConnectionLost,
    EngineFault,
    NotFound,
    OutcomeUnknown,
    Refused,
    TimedOut,
    Unavailable,
    VersionConflict,
)
from hms_memory_tool.store import TAG, Document, HmsStore, ToolFailed

from .conftest import OpenStore

pytestmark = pytest.mark.anyio

TEXTS = [
    "",
    "\n",
    "  \t\n ",
    "one\r\ntwo\r\n",
    "\ufeffbom\n",
    "nul\x00 and \x0c and \x85 and \u2028",
    "日本語 😀",
    "\n\nlead and trail\n\n\n",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_text_comes_back_byte_for_byte(open_store: OpenStore, text: str) -> None:
    async with open_store() as (store, _):
        version = await store.create(Document("/memories/a", text))
        document = await store.get("/memories/a")
        assert (document.text, document.version) == (text, version)
        assert (await store.entries("", None, 10)).items[0].size == len(text.encode())


async def test_create_never_overwrites(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        await store.create(Document("/memories/a", "one"))
        with pytest.raises(AlreadyExists):
            await store.create(Document("/memories/a", "two"))
        assert (await store.get("/memories/a")).text == "one"


async def test_replace_of_a_stale_version_is_a_conflict(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        await store.create(Document("/memories/a", "one"))
        first = await store.get("/memories/a")
        await store.replace(first, "two")
        with pytest.raises(VersionConflict):
            await store.replace(first, "three")
        assert (await store.get("/memories/a")).text == "two"


async def test_replace_of_a_deleted_key_is_a_conflict(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        await store.create(Document("/memories/a", "one"))
        document = await store.get("/memories/a")
        assert await store.delete(["/memories/a"]) == 1
        with pytest.raises(VersionConflict):
            await store.replace(document, "two")


async def test_replace_keeps_what_another_client_set(open_store: OpenStore) -> None:
    async with open_store() as (store, session):
        theirs = {
            "id": "/memories/a",
            "text": "one",
            "title": "Their title",
            "tags": ["theirs"],
            "metadata": {"source": "crm", "depth": {"n": [1, 2.5, None, True]}},
        }
        await session("remember", theirs)
        await store.replace(await store.get("/memories/a"), "two")
        memory = (await session("get", {"id": "/memories/a"}))["memory"]
        assert memory["text"] == "two"
        assert memory["title"] == theirs["title"]
        assert memory["metadata"] == theirs["metadata"]
        assert set(memory["tags"]) == {"theirs", TAG}


async def test_missing_keys_are_not_found_and_not_deleted(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        with pytest.raises(NotFound):
            await store.get("/memories/a")
        assert await store.delete(["/memories/a", "/memories/b"]) == 0


async def test_pages_join_to_the_whole_listing(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        keys = [f"/memories/{number:03}" for number in range(23)]
        for key in keys:
            await store.create(Document(key, "x" * 300))
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.documents("/memories/", cursor, 5)
            seen += [document.key for document in page.items]
            assert all(len(document.text) == 300 for document in page.items)
            if (cursor := page.cursor) is None:
                break
        assert seen == keys


async def test_recall_finds_memory_files_alone(open_store: OpenStore) -> None:
    async with open_store() as (store, session):
        await session("remember", {"id": "fact", "text": "Acme prefers email"})
        await store.create(Document("/memories/a", "Acme prefers email"))
        assert [hit.key for hit in await store.recall("acme email", 5)] == ["/memories/a"]


async def test_limits_are_those_of_the_engine(open_store: OpenStore) -> None:
    async with open_store("--max-text-bytes=50", "--max-page=7", "--max-top-k=3") as (store, _):
        limits = await store.limits()
        assert (limits.max_text_bytes, limits.max_page, limits.max_recalled) == (50, 7, 3)
        with pytest.raises(Refused):
            await store.create(Document("/memories/a", "x" * 51))


def answering(answer: Mapping[str, Any] | Exception) -> HmsStore:
    """A store whose engine gives one answer, to inject a fault."""

    async def call(tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return HmsStore(call, "n")


async def test_an_answer_for_another_namespace_is_a_fault() -> None:
    with pytest.raises(EngineFault):
        await answering({"namespace": "other", "version": "1"}).create(Document("/memories/a", ""))


@pytest.mark.parametrize(
    "fault", [ConnectionLost(), TimedOut(), EngineFault(), ToolFailed("internal", "disk")]
)
async def test_a_write_without_an_answer_has_an_unknown_outcome(fault: Exception) -> None:
    with pytest.raises(OutcomeUnknown):
        await answering(fault).create(Document("/memories/a", ""))
    with pytest.raises(OutcomeUnknown):
        await answering(fault).delete(["/memories/a"])


async def test_a_write_that_was_not_sent_has_a_known_outcome() -> None:
    with pytest.raises(Unavailable) as raised:
        await answering(Unavailable()).create(Document("/memories/a", ""))
    assert type(raised.value) is Unavailable


async def test_a_write_that_the_engine_refuses_has_a_known_outcome(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        with pytest.raises(EngineFault):
            await store.delete([])


@pytest.mark.parametrize("code", ["store_locked", "store_unavailable", "too_many_stores"])
async def test_a_store_that_cannot_be_had_is_unavailable(code: str) -> None:
    with pytest.raises(Unavailable) as raised:
        await answering(ToolFailed(code, "")).get("/memories/a")
    assert type(raised.value) is Unavailable


async def test_a_shared_engine_is_told_the_namespace_with_every_call() -> None:
    seen: list[dict[str, Any]] = []

    async def call(tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        seen.append(arguments)
        return {
            "namespace": "n",
            "version": "1",
            "deleted": 0,
            "memories": [],
            "next_cursor": None,
            "results": [],
            "limits": dict.fromkeys(
                ["max_text_bytes", "max_page", "max_top_k", "max_metadata_bytes"], 1
            ),
        }

    store = HmsStore(call, "n", is_shared=True)
    await store.limits()
    await store.create(Document("a", ""))
    await store.replace(Document("a", ""), "b")
    await store.delete(["a"])
    await store.entries("", None, 1)
    await store.documents("", None, 1)
    await store.recall("q", 1)
    assert [arguments["namespace"] for arguments in seen] == ["n"] * 7
