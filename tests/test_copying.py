"""The copying of a store that is written to, where engines do not answer as they should."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest

from hms_memory_gateway.compaction import Copying
from hms_memory_gateway.current import CurrentEngine
from hms_memory_gateway.problems import CompactionGaveWay
from hms_memory_tool.errors import AlreadyExists, OutcomeUnknown, TimedOut
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.session import EngineSession
from hms_memory_tool.store import Document, HmsStore

from .conftest import OpenStore

pytestmark = pytest.mark.anyio
KEY = "/memories/a"


class Stalling(EngineSession):
    """A real session that answers no write while it stalls, and does what was asked afterwards."""

    def __init__(self, session: EngineSession) -> None:
        self._real = session
        self.ended = session.ended
        self.stalls = False
        self._held: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        if self.stalls and tool in ("remember", "forget"):
            self._held.append((tool, arguments))
            raise TimedOut(tool)
        return await self._real(tool, arguments)

    async def go_on(self) -> None:
        """Do what was held up."""
        for tool, arguments in self._held:
            await self._real(tool, arguments)


async def nothing() -> None:
    """What is left behind is of no interest here."""


class Bench:
    """An old store that is written to, a new one, and a copying from one to the other."""

    def __init__(self, session: EngineSession, new: HmsStore) -> None:
        self.session = Stalling(session)
        self.engine = CurrentEngine(self.session, nothing)
        self.old = HmsStore(self.engine, "n")
        self.new = new
        self.has_exchanged = False

    async def copying(self) -> Copying:
        """Everything that comes before the exchange."""
        self.engine.changes.follow()
        copying = Copying(
            HmsStore(self.session, "n"),
            self.engine.changes,
            max_page=100,
            is_patient=False,
            progress=lambda done, total: None,
        )
        await copying.fill(self.new)
        await copying.catch_up(self.new)
        await copying.verify(self.new)
        return copying

    async def exchange(self, copying: Copying, new: HmsStore, wait_seconds: float) -> None:
        """Exchange them, with the copying's own care."""
        files = await MemoryFiles.open(
            self.old, max_file_bytes=None, max_view_chars=1_000, is_exclusive=True
        )

        async def exchanged() -> None:
            self.has_exchanged = True

        await copying.exchange(new, files, wait_seconds, exchanged)


@pytest.fixture
async def bench(open_store: OpenStore) -> AsyncGenerator[Bench]:
    """Two real engines."""
    async with open_store() as (_, session), open_store() as (new, _):
        made = Bench(session, new)
        await made.old.create(Document(KEY, "old"))
        yield made


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_write_without_an_answer_is_not_lost_however_late_it_is_done(
    bench: Bench, is_before: bool
) -> None:
    """It was given up before the copying began, or while it goes on, and is done at the end."""
    copying = None if is_before else await bench.copying()
    bench.session.stalls = True
    with pytest.raises(OutcomeUnknown):
        await bench.old.replace(await bench.old.get(KEY), "new")
    bench.session.stalls = False
    copying = copying or await bench.copying()
    await bench.session.go_on()
    assert (await bench.old.get(KEY)).text == "new"  # whoever sent it again was told: done
    await bench.exchange(copying, bench.new, 5)
    assert bench.has_exchanged
    assert (await bench.new.get(KEY)).text == "new"
    assert copying.has_remains


async def test_a_write_that_was_refused_is_no_change(bench: Bench) -> None:
    bench.engine.changes.follow()
    with pytest.raises(AlreadyExists):
        await bench.old.create(Document(KEY, "other"))
    assert KEY not in bench.engine.changes
    await bench.old.create(Document("/memories/b", "b"))
    assert bench.engine.changes.take() == ["/memories/b"]


async def test_a_new_store_that_stalls_holds_up_no_command(bench: Bench) -> None:
    copying = await bench.copying()
    await bench.old.replace(await bench.old.get(KEY), "new")

    async def stalled(tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(10), pytest.raises(CompactionGaveWay, match="too slow"):
        await bench.exchange(copying, HmsStore(stalled, "n"), 0.05)
    assert not bench.has_exchanged


async def test_what_was_taken_comes_before_what_has_come_since(bench: Bench) -> None:
    changes = bench.engine.changes
    changes.follow()
    for key in ("a", "b", "c"):
        changes.written([key])
    taken = changes.take()
    changes.written(["d"])
    changes.written(["b"])
    changes.put_back(taken)
    assert changes.take() == ["a", "c", "d", "b"]
