"""Stores that are compacted while they are used, over real engines."""

import os
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.folders import Folders
from hms_memory_gateway.idempotency import Answers
from hms_memory_gateway.maintenance import Maintenance
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.problems import StartFailed
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from hms_memory_tool.commands import parse_command
from hms_memory_tool.errors import MemoryFault, OutcomeUnknown, Unavailable
from hms_memory_tool.keys import Attempt
from hms_memory_tool.store import Document, HmsStore

from .conftest import stored

pytestmark = pytest.mark.anyio

NEVER = 1e9


class House:
    """A gateway's layers without HTTP, on a folder."""

    def __init__(self, pool: Pool, folder: Path, settings: Settings) -> None:
        self.pool = pool
        self.blocks = Blocks(
            pool, Answers(), Telemetry(Metrics()), forgets_at_once=settings.forget_seconds == 0
        )
        self.folders = Folders(folder)
        self.maintenance = Maintenance(pool, self.folders, settings.forget_seconds)

    async def do(self, command: str, key: str | None = None, **fields: object) -> str:
        answer = await self.blocks.execute("n", {"command": command, **fields}, key)
        assert not answer["is_error"], answer
        content: str = answer["content"]
        return content

    async def create(self, name: str, text: str) -> None:
        await self.do("create", path=f"/memories/{name}", file_text=text)

    async def edit(self, name: str, old: str, new: str) -> None:
        await self.do("str_replace", path=f"/memories/{name}", old_str=old, new_str=new)


OpenHouse = Callable[..., Any]


@pytest.fixture
def open_house(engine: Engine, tmp_path: Path) -> OpenHouse:
    """Open a gateway's layers on the folder of the test: settings, and the environment."""

    @asynccontextmanager
    async def opened(environ: dict[str, str] | None = None, **given: Any) -> AsyncGenerator[House]:
        settings = Settings(data_dir=tmp_path, **{"forget_seconds": NEVER, **given})
        connect = embedded(engine.path, settings, {**os.environ, **(environ or {})})
        async with (
            Pool(
                connect,
                idle_seconds=settings.idle_seconds,
                max_connections=settings.max_connections,
            ) as pool,
            anyio.create_task_group() as tasks,
        ):
            house = House(pool, tmp_path, settings)
            tasks.start_soon(house.maintenance.run)
            yield house
            tasks.cancel_scope.cancel()

    return opened


OpenRaw = Callable[..., Any]


@pytest.fixture
def open_raw(engine: Engine, tmp_path: Path) -> OpenRaw:
    """The store of the test's namespace through an engine alone, as another client has it."""

    @asynccontextmanager
    async def opened(environ: dict[str, str] | None = None) -> AsyncGenerator[HmsStore]:
        async with stored(engine, tmp_path, "n", environ=environ) as (store, _):
            yield store

    return opened


def found(folder: Path, *texts: str) -> list[str]:
    """Which of the texts stand in some file."""
    raw: list[bytes] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                raw.append((Path(parent) / name).read_bytes())
    return [text for text in texts if any(text.encode() in one for one in raw)]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what files or counts show, and no event tells."""
    while not is_so():  # noqa: ASYNC110
        await anyio.sleep(0.05)


async def everything(store: HmsStore) -> list[Document]:
    page = await store.documents("", None, 200)
    assert page.cursor is None
    return list(page.items)


OTHERS = [
    Document("note", "another client's", title="A title", tags=("b", "a"), metadata={"x": [1]}),
    Document("/memories/theirs", "without our tag", metadata={"kept": True}),
    Document("blank", ""),
    Document("space", " \n\t "),
    Document("odd", "\ufeffa\r\nb\u2028c\x00d\u0085 ", tags=("t" * 64,)),
    Document("zz/" + "k" * 200, "long id", metadata={"hms-memory-gateway.keys": "a=b:c"}),
]


async def test_everything_in_a_store_survives_as_it_is(
    open_house: OpenHouse, open_raw: OpenRaw
) -> None:
    async with open_raw() as store:
        for document in OTHERS:
            await store.put(document)
        before = await everything(store)
    async with open_house() as house:
        await house.create("f", "ours\n")
        done = await house.pool.compact("n")
        assert done.memories == len(OTHERS) + 1
        assert "ours" in await house.do("view", path="/memories/f")
    async with open_raw() as store:
        after = [one for one in await everything(store) if one.key != "/memories/f"]
    strip = [Document(d.key, d.text, "", d.title, d.tags, d.metadata) for d in before]
    assert [Document(d.key, d.text, "", d.title, d.tags, d.metadata) for d in after] == strip
    assert all(one.version != other.version for one, other in zip(before, after, strict=True))


async def test_what_was_edited_renamed_or_deleted_is_in_no_file(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    async with open_house() as house:
        await house.create("kept", "KEPT-MARK\n")
        await house.create("edited", "EDITED-MARK away\n")
        await house.edit("edited", "EDITED-MARK", "NEW-MARK")
        await house.create("RENAMED-MARK", "moved\n")
        await house.do("rename", old_path="/memories/RENAMED-MARK", new_path="/memories/moved")
        await house.create("deleted", "DELETED-MARK\n")
        await house.blocks.recall("n", {"query": "DELETED-MARK RECALLED-MARK"})
        await house.do("delete", path="/memories/deleted", key="k1")
        for number in range(5):
            await house.create(f"ERASED-MARK/{number}", f"ERASED-MARK {number}\n")
        await house.do("delete", path="/memories/ERASED-MARK")
        gone = ("EDITED-MARK", "RENAMED-MARK", "DELETED-MARK", "ERASED-MARK")
        assert found(tmp_path, *gone) == list(gone)  # what this is about
        await house.pool.compact("n")
        assert found(tmp_path, *gone, "RECALLED-MARK") == []
        assert found(tmp_path, "KEPT-MARK", "NEW-MARK") == ["KEPT-MARK", "NEW-MARK"]
    assert found(tmp_path, *gone) == []


async def test_at_zero_seconds_it_is_gone_before_the_answer(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    async with open_house(forget_seconds=0) as house:
        await house.create("f", "FIRST-MARK\n")
        await house.create("g", "OTHER-MARK\n")
        await house.edit("f", "FIRST-MARK", "second")
        assert found(tmp_path, "FIRST-MARK", "OTHER-MARK") == ["OTHER-MARK"]
        await house.do("delete", path="/memories/g", key="k")
        assert found(tmp_path, "OTHER-MARK") == []
        assert "second" in await house.do("view", path="/memories/f")


async def test_many_who_want_it_gone_at_once_each_get_it(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    async with open_house(forget_seconds=0) as house:
        for number in range(6):
            await house.create(str(number), f"MARK-{number}-X\n")

        async def redact(number: int) -> None:
            await house.edit(str(number), f"MARK-{number}-X", "gone")
            assert found(tmp_path, f"MARK-{number}-X") == []

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(redact, number)


@pytest.mark.parametrize("is_open", [True, False])
async def test_it_is_gone_in_time_whether_the_store_is_open_or_not(
    open_house: OpenHouse, tmp_path: Path, is_open: bool
) -> None:
    idle = 60 if is_open else 0.05
    async with open_house(forget_seconds=4, idle_seconds=idle) as house:
        await house.create("f", "FIRST-MARK\n")
        await house.edit("f", "FIRST-MARK", "second")
        assert found(tmp_path, "FIRST-MARK")
        with anyio.fail_after(20):
            await until(lambda: not found(tmp_path, "FIRST-MARK"))


async def test_a_mark_outlives_the_gateway(open_house: OpenHouse, tmp_path: Path) -> None:
    async with open_house() as house:
        await house.create("f", "FIRST-MARK\n")
        assert not house.folders.is_marked("n")
        await house.edit("f", "FIRST-MARK", "second")
    async with open_house(forget_seconds=0.1) as house:
        with anyio.fail_after(20):
            await until(lambda: not found(tmp_path, "FIRST-MARK"))


async def test_what_is_done_for_closed_stores_leaves_them_closed(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    names = [f"n{number}" for number in range(6)]
    async with open_house() as house:
        for name in names:
            for command in ("create", "delete"):
                given = {"command": command, "path": "/memories/f", "file_text": f"MARK-{name}"}
                await house.blocks.execute(name, given)
    async with open_house(forget_seconds=0.1) as house:
        with anyio.fail_after(60):
            await until(lambda: not house.folders.marked(0))
            await until(lambda: not house.pool.stats()["idle"])
        assert found(tmp_path, *(f"MARK-{name}" for name in names)) == []
        assert house.pool.stats()["opened"] == 6


async def test_it_is_done_while_other_namespaces_want_the_room(open_house: OpenHouse) -> None:
    async with open_house(max_connections=2) as house:
        for number in range(100):
            await house.create(str(number), f"{number}\n")
        begun, finished = anyio.Event(), anyio.Event()

        async def look(name: str) -> None:
            while not finished.is_set():
                await house.blocks.execute(name, {"command": "view", "path": "/memories"})
                begun.set()

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(look, f"other-{number}")
            await begun.wait()
            for _ in range(3):
                assert (await house.pool.compact("n")).memories == 100
            finished.set()


async def test_a_look_that_fails_is_not_the_last(
    open_house: OpenHouse, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = tmp_path / "compaction" / "marks"
    async with open_house(forget_seconds=0.5) as house:
        marks.parent.mkdir()
        marks.touch()
        with anyio.fail_after(20):
            await until(lambda: "nobody knows which stores" in caplog.text)
        await house.create("f", "FIRST-MARK\n")
        edit = {"command": "str_replace", "path": "/memories/f", "old_str": "FIRST-MARK"}
        with pytest.raises(Unavailable, match="cannot be noted"):
            await house.blocks.execute("n", edit)
        marks.unlink()
        await house.edit("f", "FIRST-MARK", "second")
        with anyio.fail_after(20):
            await until(lambda: not found(tmp_path, "FIRST-MARK"))


async def test_what_was_written_under_higher_limits_is_copied(open_house: OpenHouse) -> None:
    limits = {"HMS_MCP_MAX_TEXT_BYTES": "65536"}
    async with open_house(limits, max_file_bytes=65_536) as house:
        await house.create("large", "x" * 60_000)
    async with open_house() as house:
        assert (await house.pool.compact("n")).memories == 1
        assert "xxx" in await house.do("view", path="/memories/large")


async def test_a_writer_at_full_speed_through_ten_compactions(
    open_house: OpenHouse, record_property: Callable[[str, object], None]
) -> None:
    written: list[str] = []
    longest = 0.0
    async with open_house() as house:
        await house.create("f0", "end\n")
        stop = anyio.Event()

        async def write() -> None:
            nonlocal longest
            while not stop.is_set():
                number = len(written)
                file = f"f{number // 500}"  # a file holds 4,096 words
                if number % 500 == 0 and number:
                    await house.create(file, "end\n")
                started = anyio.current_time()
                await house.do(
                    "insert", path=f"/memories/{file}", insert_line=0, insert_text=f"{number}\n"
                )
                longest = max(longest, anyio.current_time() - started)
                written.append(file)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for _ in range(10):
                await house.maintenance.compact("n")
            with anyio.fail_after(60):
                await until(lambda: len(written) > 100)
            stop.set()
        for file in set(written):
            numbers = [str(at) for at, name in enumerate(written) if name == file]
            async with house.pool.lease("n") as files:
                view = parse_command({"command": "view", "path": f"/memories/{file}"})
                lines = (await files.execute(view)).split("\n")[1:]
            assert [line.split("\t")[1] for line in lines] == [*reversed(numbers), "end"]
    figure = f"longest wait in {len(written)} writes, ten compactions"
    record_property(figure, f"{longest * 1_000:.0f} ms")


async def test_a_store_that_has_grown_is_compacted_before_it_is_closed(
    open_house: OpenHouse,
) -> None:
    async with open_house(idle_seconds=0.3, compact_min_bytes=0, compact_factor=3) as house:
        words = ["x " * 900, "y " * 900]
        await house.create("f", words[0])
        await house.maintenance.compact("n")  # the one that is due on opening
        for number in range(200):
            await house.edit("f", words[number % 2], words[1 - number % 2])
        with anyio.fail_after(20):
            await until(lambda: house.pool.stats().get("closed_idle", 0) == 1)
        fresh = house.folders.fresh_bytes("n")
        assert 0 < house.folders.journal_bytes("n") <= 3 * fresh


async def test_a_deletion_sent_again_after_a_compaction_spares_what_came_since(
    open_house: OpenHouse,
) -> None:
    async with open_house() as house:
        await house.create("f", "first\n")
        await house.do("delete", path="/memories/f", key="k")
        await anyio.sleep(0.002)  # the engine's clock counts milliseconds
        await house.create("f", "second\n")
        await house.create("g", "untouched\n")
        await house.pool.compact("n")
        house.blocks = Blocks(house.pool, Answers(), Telemetry(Metrics()))  # as after a restart
        await house.do("delete", path="/memories/f", key="k")
        assert "second" in await house.do("view", path="/memories/f")


async def test_an_edit_sent_again_after_a_compaction_is_made_once(open_house: OpenHouse) -> None:
    async with open_house() as house:
        await house.create("f", "a\n")
        for _ in range(2):
            await house.do(
                "insert", key="k", path="/memories/f", insert_line=0, insert_text="once\n"
            )
            await house.pool.compact("n")
            house.blocks = Blocks(house.pool, Answers(), Telemetry(Metrics()))
        assert (await house.do("view", path="/memories/f")).count("once") == 1


async def test_a_deletion_tried_again_across_a_compaction_claims_nothing(
    open_house: OpenHouse,
) -> None:
    async with open_house() as house:
        await house.create("f", "first\n")
        attempt = Attempt(seen={})
        async with house.pool.lease("n") as files:
            delete = parse_command({"command": "delete", "path": "/memories/f"})
            attempt.seen = {"/memories/f": "the version before a compaction"}
            with pytest.raises(OutcomeUnknown):
                await files.execute(delete, attempt)
        assert "first" in await house.do("view", path="/memories/f")


KEYS = {
    "plain": {},
    "one": {"HMS_MCP_ENCRYPT": "true", "HMS_MCP_PASSPHRASE": "number one"},
    "two": {"HMS_MCP_ENCRYPT": "true", "HMS_MCP_PASSPHRASE": "number two"},
}


@pytest.mark.parametrize(("before", "after"), [("one", "two"), ("plain", "one"), ("one", "plain")])
async def test_a_passphrase_is_changed_by_a_compaction(
    open_house: OpenHouse, open_raw: OpenRaw, tmp_path: Path, before: str, after: str
) -> None:
    async with open_house(KEYS[before]) as house:
        await house.create("f", "SECRET-MARK\n")
        await house.create("g", "other\n")
    assert bool(found(tmp_path, "SECRET-MARK")) == (before == "plain")
    previous = KEYS[before].get("HMS_MCP_PASSPHRASE", "")
    async with open_house(KEYS[after], previous_passphrase=previous) as house:
        assert "SECRET-MARK" in await house.do("view", path="/memories/f")
        await house.pool.compact("n")
        await house.create("h", "third\n")
    assert bool(found(tmp_path, "SECRET-MARK")) == (after == "plain")
    async with open_raw(KEYS[after]) as store:
        assert [one.text for one in await everything(store)] == [
            "SECRET-MARK\n",
            "other\n",
            "third\n",
        ]
    with pytest.raises(MemoryFault):
        async with open_raw(KEYS[before]):
            pass


async def test_an_encrypted_store_stays_so_and_forgets(
    open_house: OpenHouse, open_raw: OpenRaw, tmp_path: Path
) -> None:
    async with open_house(KEYS["one"]) as house:
        await house.create("f", "FIRST-MARK\n")
        await house.edit("f", "FIRST-MARK", "SECOND-MARK")
        await house.pool.compact("n")
        assert found(tmp_path, "FIRST-MARK", "SECOND-MARK") == []
    async with open_raw(KEYS["one"]) as store:
        assert [one.text for one in await everything(store)] == ["SECOND-MARK\n"]


async def test_a_wrong_passphrase_is_still_refused(open_house: OpenHouse) -> None:
    async with open_house(KEYS["one"]) as house:
        await house.create("f", "x\n")
    async with open_house(KEYS["two"], previous_passphrase="neither") as house:
        with pytest.raises(StartFailed):
            await house.do("view", path="/memories")


async def test_random_commands_between_compactions_are_all_there(
    open_house: OpenHouse, fault_seed: int
) -> None:
    chance = random.Random(fault_seed)
    expected: dict[str, str] = {}
    async with open_house() as house:
        for number in range(200):
            name = f"d{chance.randrange(3)}/f{chance.randrange(4)}"
            if name not in expected:
                await house.create(name, f"{number}\n")
                expected[name] = f"{number}\n"
            elif chance.random() < 0.3:
                await house.do("delete", path=f"/memories/{name}", key=str(number))
                del expected[name]
            else:
                await house.do(
                    "insert", path=f"/memories/{name}", insert_line=0, insert_text=f"{number}\n"
                )
                expected[name] = f"{number}\n{expected[name]}"
            if number % 40 == 39:
                await house.pool.compact("n")
        for name, text in expected.items():
            view = await house.do("view", path=f"/memories/{name}")
            assert [line.split("\t")[1] for line in view.split("\n")[1:]] == text.split("\n")[:-1]
