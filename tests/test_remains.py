"""Whether the disk still holds what was deleted, whoever writes while that is looked at."""

import threading
from pathlib import Path
from time import time

import anyio
import pytest
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from hms_memory_gateway.folders import Folders
from hms_memory_gateway.remains import Remains

pytestmark = pytest.mark.anyio


class SlowFolders(Folders):
    """Takes a mark away when it is let."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def unmark(self, name: str) -> None:
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        super().unmark(name)


async def test_they_are_there_until_the_replaced_store_is_gone(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    remains = Remains(folders, "n")
    assert not remains
    await remains.add()
    assert folders.is_marked("n")
    assert Remains(folders, "n")
    remains.exchanged(have_come=False)
    assert remains
    await remains.gone(since=1.0)
    assert not remains
    assert not folders.is_marked("n")


@pytest.mark.parametrize("is_before_exchange", [True, False])
async def test_those_that_came_meanwhile_stay(tmp_path: Path, is_before_exchange: bool) -> None:
    folders = Folders(tmp_path)
    remains = Remains(folders, "n")
    await remains.add()
    remains.exchanged(have_come=is_before_exchange)
    if not is_before_exchange:
        await remains.add()
    await remains.gone(since=time())
    assert remains
    assert folders.is_marked("n")
    (tmp_path / "stores" / "n").mkdir(parents=True)
    assert folders.marked(10) == []  # none is older than the new store


async def test_a_write_that_comes_while_the_mark_is_taken_away_makes_it_anew(
    tmp_path: Path,
) -> None:
    folders = SlowFolders(tmp_path)
    remains = Remains(folders, "n")
    await remains.add()
    remains.exchanged(have_come=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remains.gone, 1.0)
        await run_sync(folders.has_begun.wait)
        tasks.start_soon(remains.add)
        await checkpoint()
        folders.may_go_on.set()
    assert remains
    assert folders.is_marked("n")
