"""Exchanges of folders: what a crash leaves at each step, and what the next start makes of it."""

import os
import shutil
from pathlib import Path

import pytest

from hms_memory_gateway.folders import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A store `n` with an old text, and a successor with a new one."""
    folders = Folders(tmp_path)
    (folders.store("n") / "documents").write_text("old")
    (folders.begin("n") / "documents").write_text("new")
    return folders


def text(folders: Folders) -> str:
    return (folders.store("n") / "documents").read_text()


def leftovers(folder: Path) -> list[Path]:
    return [
        path for name in ("fresh", "replaced") for path in (folder / "compaction" / name).glob("*")
    ]


def test_the_successor_takes_the_place_and_the_old_one_goes(
    folders: Folders, tmp_path: Path
) -> None:
    folders.exchange("n")
    assert text(folders) == "new"
    assert (tmp_path / "compaction" / "replaced" / "n" / "documents").read_text() == "old"
    folders.clear("n")
    assert leftovers(tmp_path) == []


def test_a_crash_before_the_exchange_leaves_the_old_store(folders: Folders, tmp_path: Path) -> None:
    assert Folders(tmp_path).recover() == []
    assert text(folders) == "old"
    assert leftovers(tmp_path) == []


def test_a_crash_between_the_renames_is_undone(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "stores" / "n").rename(tmp_path / "compaction" / "replaced" / "n")
    assert Folders(tmp_path).recover() == ["n"]
    assert text(folders) == "old"
    assert leftovers(tmp_path) == []


def test_what_is_the_only_copy_is_never_deleted(folders: Folders, tmp_path: Path) -> None:
    """An exchange failed, and so did its undoing: by then the disk is broken, not the store."""
    (tmp_path / "stores" / "n").rename(tmp_path / "compaction" / "replaced" / "n")
    folders.clear("n")
    folders.begin("n")
    assert text(folders) == "old"
    assert Folders(tmp_path).recover() == []
    assert text(folders) == "old"


def test_a_crash_after_the_exchange_leaves_the_new_store(folders: Folders, tmp_path: Path) -> None:
    folders.exchange("n")
    assert Folders(tmp_path).recover() == []
    assert text(folders) == "new"
    assert leftovers(tmp_path) == []


def test_a_start_after_a_start_changes_nothing(folders: Folders, tmp_path: Path) -> None:
    folders.exchange("n")
    for _ in range(2):
        Folders(tmp_path).recover()
    assert text(folders) == "new"


def test_an_exchange_that_fails_leaves_everything_where_it_was(
    folders: Folders, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "compaction" / "fresh" / "n")
    with pytest.raises(FileNotFoundError):
        folders.exchange("n")
    assert text(folders) == "old"
    assert leftovers(tmp_path) == []


def test_what_is_left_of_an_earlier_compaction_is_gone_when_the_next_begins(
    folders: Folders, tmp_path: Path
) -> None:
    folders.exchange("n")
    assert not any(folders.begin("n").iterdir())
    assert not (tmp_path / "compaction" / "replaced" / "n").exists()
    assert text(folders) == "new"


def test_a_mark_keeps_the_time_of_the_first_and_is_listed_when_due(folders: Folders) -> None:
    folders.mark("n", since=1_000.0)
    folders.mark("n")
    assert folders.is_marked("n")
    assert folders.marked(1e12) == []
    assert folders.marked(10) == ["n"]
    folders.mark("n", since=9_000_000_000.0)
    assert folders.marked(10) == []
    folders.unmark("n")
    assert not folders.is_marked("n")
    folders.unmark("n")


def test_marks_of_stores_that_are_gone_are_not_due(folders: Folders) -> None:
    folders.mark("erased", since=0.0)
    assert folders.marked(10) == []


def test_sizes_are_of_the_disk_and_remembered(folders: Folders, tmp_path: Path) -> None:
    assert folders.fresh_bytes("n") == 0
    (tmp_path / "compaction" / "fresh" / "n" / "hole").touch()
    os.truncate(tmp_path / "compaction" / "fresh" / "n" / "hole", 1 << 30)
    folders.note_size("n")
    assert 0 < folders.fresh_bytes("n") < 1 << 20
    (tmp_path / "compaction" / "sizes" / "n").write_text("")  # cut short by a crash
    assert folders.fresh_bytes("n") == 0


def test_stores_are_listed(folders: Folders, tmp_path: Path) -> None:
    folders.store("a")
    assert folders.names() == ["a", "n"]
    assert folders.has("a")
    assert not folders.has("b")
    assert Folders(tmp_path / "nothing").names() == []
