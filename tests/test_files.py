"""The commands over a real engine, and over a store that another writer changes meanwhile."""

from collections.abc import Sequence

import anyio
import pytest

from hms_memory_tool.commands import parse_command, parse_recall
from hms_memory_tool.errors import Contended, EngineFault, OutcomeUnknown, Refused, Unavailable
from hms_memory_tool.files import ATTEMPTS, MemoryFiles
from hms_memory_tool.store import Document, Entry, HmsStore, Limits, Page

from .conftest import OpenStore

pytestmark = pytest.mark.anyio
LIMITS = Limits(32_768, 200, 50)


async def run(files: MemoryFiles, command: str, **fields: object) -> str:
    return await files.execute(parse_command({"command": command, **fields}))


class Disturbed:
    """A real store; before each write `disturb` is called, to be another writer."""

    def __init__(self, store: HmsStore) -> None:
        self._store = store
        self.entries = store.entries
        self.get = store.get
        self.recall = store.recall
        self.limits = store.limits
        self.documents = store.documents
        self.delete = store.delete
        self.disturbances = 0

    async def _disturb(self, key: str) -> None:
        if self.disturbances:
            self.disturbances -= 1
            before = await self._store.get(key)
            await self._store.replace(before, before.text + "theirs\n")

    async def create(self, document: Document) -> str:
        return await self._store.create(document)

    async def replace(self, document: Document, text: str) -> str:
        await self._disturb(document.key)
        return await self._store.replace(document, text)


async def test_an_edit_is_made_on_what_others_wrote_meanwhile(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        disturbed = Disturbed(store)
        files = MemoryFiles(disturbed, LIMITS)
        await run(files, "create", path="/memories/a", file_text="top\n")
        disturbed.disturbances = ATTEMPTS - 1
        await run(files, "insert", path="/memories/a", insert_line=1, insert_text="ours")
        text = (await store.get("/memories/a")).text
        assert text == "top\nours\n" + "theirs\n" * (ATTEMPTS - 1)


async def test_an_edit_gives_up_with_nothing_written_when_others_never_stop(
    open_store: OpenStore,
) -> None:
    async with open_store() as (store, _):
        disturbed = Disturbed(store)
        files = MemoryFiles(disturbed, LIMITS)
        await run(files, "create", path="/memories/a", file_text="top\n")
        disturbed.disturbances = ATTEMPTS
        with pytest.raises(Contended):
            await run(files, "insert", path="/memories/a", insert_line=1, insert_text="ours")
        assert "ours" not in (await store.get("/memories/a")).text


async def test_writers_in_several_processes_lose_nothing(open_store: OpenStore) -> None:
    """Two `MemoryFiles` over one store are two gateways: they share no lock."""
    async with open_store() as (store, _):
        one, two = MemoryFiles(store, LIMITS), MemoryFiles(store, LIMITS)
        await run(one, "create", path="/memories/a", file_text="")
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(insert, one if number % 2 else two, f"line {number}")
        lines = (await store.get("/memories/a")).text.splitlines()
        assert sorted(lines) == sorted(f"line {number}" for number in range(30))


async def insert(files: MemoryFiles, line: str) -> None:
    await run(files, "insert", path="/memories/a", insert_line=0, insert_text=line)


async def test_rename_keeps_what_another_client_set(open_store: OpenStore) -> None:
    async with open_store() as (store, session):
        files = MemoryFiles(store, LIMITS)
        extras = {"title": "T", "tags": ["theirs"], "metadata": {"k": 1}}
        await session("remember", {"id": "/memories/d/a", "text": "x", **extras})
        await run(files, "rename", old_path="/memories/d", new_path="/memories/e")
        memory = (await session("get", {"id": "/memories/e/a"}))["memory"]
        assert (memory["title"], memory["metadata"]) == ("T", {"k": 1})
        assert set(memory["tags"]) == {"memory-file", "theirs"}


class Half(Disturbed):
    """A real store whose third `create` fails, or finds a source changed."""

    creates = 0
    fault: Exception | None = None

    async def create(self, document: Document) -> str:
        self.creates += 1
        if self.creates == 4:  # the third copy: the first is the intent
            if self.fault:
                raise self.fault
            source = document.key.replace("/new/", "/old/")
            await self._store.replace(await self._store.get(source), "edited meanwhile")
        return await super().create(document)


async def _moving(store: HmsStore) -> tuple[Half, MemoryFiles]:
    half = Half(store)
    files = MemoryFiles(half, LIMITS)
    for name in "abcd":
        await store.create(Document(f"/memories/old/{name}", name))
    return half, files


@pytest.mark.parametrize("fault", [Unavailable("gone"), None])
async def test_rename_that_fails_half_way_leaves_the_original(
    open_store: OpenStore, fault: Exception | None
) -> None:
    async with open_store() as (store, _):
        half, files = await _moving(store)
        half.fault = fault
        with pytest.raises(Unavailable if fault else Contended):
            await run(files, "rename", old_path="/memories/old", new_path="/memories/new")
        await files.recover()
        page = await store.documents("", None, 50)
        assert [document.key for document in page.items] == [f"/memories/old/{n}" for n in "abcd"]
        changed = page.items[2].text
        assert changed == ("c" if fault else "edited meanwhile")


async def test_a_directory_move_that_would_make_a_path_too_long_moves_nothing(
    open_store: OpenStore,
) -> None:
    async with open_store() as (store, _):
        files = MemoryFiles(store, LIMITS)
        deep = "/memories/d/" + "/".join("abcdefghijklmno")
        await run(files, "create", path=deep, file_text="x")
        with pytest.raises(Refused) as raised:
            await run(files, "rename", old_path="/memories/d", new_path="/memories/e/f")
        assert "17 levels" in str(raised.value)
        assert (await store.get(deep)).text == "x"


async def test_recall_waits_while_files_move(open_store: OpenStore) -> None:
    """In mid-rename a file is in two places; a recall must see it in one."""
    async with open_store() as (store, _):
        for name in "abc":
            await store.create(Document(f"/memories/old/{name}", f"secret {name}"))
        moving, proceed = anyio.Event(), anyio.Event()

        class Paused(Disturbed):
            async def create(self, document: Document) -> str:
                version = await super().create(document)
                moving.set()
                await proceed.wait()
                return version

        files = MemoryFiles(Paused(store), LIMITS)
        found: list[str] = []

        async def recall() -> None:
            results = await files.recall(parse_recall({"query": "secret"}))
            found.extend(sorted(result.path for result in results))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_rename, files)
                await moving.wait()
                tasks.start_soon(recall)
                await anyio.lowlevel.checkpoint()
                assert found == []
                proceed.set()
        assert found == [f"/memories/new/{name}" for name in "abc"]


async def _rename(files: MemoryFiles) -> None:
    await run(files, "rename", old_path="/memories/old", new_path="/memories/new")


async def test_a_move_waits_for_the_recalls_under_way(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        await store.create(Document("/memories/old/a", "secret"))
        recalling, proceed = anyio.Event(), anyio.Event()
        disturbed = Disturbed(store)

        async def slow(query: str, k: int) -> list[object]:
            recalling.set()
            await proceed.wait()
            return list(await store.recall(query, k))

        disturbed.recall = slow  # type: ignore[assignment]
        files = MemoryFiles(disturbed, LIMITS)
        found: list[str] = []

        async def recall() -> None:
            results = await files.recall(parse_recall({"query": "secret"}))
            found.extend(result.path for result in results)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(recall)
                await recalling.wait()
                tasks.start_soon(_rename, files)
                await anyio.lowlevel.checkpoint()
                proceed.set()
        assert found == ["/memories/old/a"]
        assert (await store.get("/memories/new/a")).text == "secret"


async def test_recall_waits_while_a_directory_is_deleted(open_store: OpenStore) -> None:
    """In the middle of it some files are gone and some are there: a recall sees none of that."""
    async with open_store() as (store, _):
        for name in "ab":
            await store.create(Document(f"/memories/old/{name}", f"secret {name}"))
        deleting, proceed = anyio.Event(), anyio.Event()

        class Paused(Disturbed):
            def __init__(self, store: HmsStore) -> None:
                super().__init__(store)
                self.delete = self.pause

            async def pause(self, keys: Sequence[str]) -> int:
                if len(keys) == 1:  # the intent, at the end
                    return await self._store.delete(keys)
                deleted = await self._store.delete(keys[:1])
                deleting.set()
                await proceed.wait()
                return deleted + await self._store.delete(keys[1:])

        files = MemoryFiles(Paused(store), LIMITS)
        found: list[int] = []

        async def recall() -> None:
            found.append(len(await files.recall(parse_recall({"query": "secret"}))))

        async def delete() -> None:
            await run(files, "delete", path="/memories/old")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(delete)
                await deleting.wait()
                tasks.start_soon(recall)
                await anyio.lowlevel.checkpoint()
                assert found == []
                proceed.set()
        assert found == [0]


async def test_a_listing_that_does_not_advance_ends_with_a_fault(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        disturbed = Disturbed(store)

        async def stuck(prefix: str, cursor: str | None, limit: int) -> Page[Entry]:
            return Page([Entry("/memories/a", 1, "v", 0)], "/memories/a")

        disturbed.entries = stuck
        with anyio.fail_after(5), pytest.raises(EngineFault):
            await run(MemoryFiles(disturbed, LIMITS), "view", path="/memories")


async def test_files_of_another_client_that_no_command_could_name_are_not_shown(
    open_store: OpenStore,
) -> None:
    async with open_store() as (store, session):
        for key in ("/memories/.hidden", "/memories/d/.x/y", "/memories/ok", "/memoriesX/a"):
            await session("remember", {"id": key, "text": "word", "tags": ["memory-file"]})
        files = MemoryFiles(store, LIMITS)
        listing = await run(files, "view", path="/memories")
        assert listing.endswith("\n12B\t/memories\n4B\t/memories/d/\n4B\t/memories/ok")
        found = await files.recall(parse_recall({"query": "word", "k": 50}))
        assert [result.path for result in found] == ["/memories/ok"]


async def test_what_an_earlier_move_is_stuck_on_is_not_said_of_a_command_that_wrote_nothing(
    open_store: OpenStore,
) -> None:
    async with open_store() as (store, _):
        stuck = Disturbed(store)
        files = MemoryFiles(stuck, LIMITS)
        for name in ("a", "b"):
            await run(files, "create", path=f"/memories/d/{name}", file_text=name)

        async def no_answer(keys: Sequence[str]) -> int:
            raise OutcomeUnknown("forget")

        stuck.delete = no_answer
        with pytest.raises(OutcomeUnknown):
            await run(files, "rename", old_path="/memories/d", new_path="/memories/e")
        with pytest.raises(Unavailable) as raised:
            await run(files, "view", path="/memories")
        assert not isinstance(raised.value, OutcomeUnknown)
        stuck.delete = store.delete
        assert "/memories/e/a" in await run(files, "view", path="/memories")
