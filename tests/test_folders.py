"""Exchanges of folders: what a crash leaves at each step, and what the next start makes of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import time

import pytest

from hms_memory_gateway.folders import Folders, FolderUnusable

from .test_survival import ALONE, can_mount


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
    folders.mark("n", since=time())
    assert folders.marked(10) == []
    folders.unmark("n")
    assert not folders.is_marked("n")
    folders.unmark("n")


def test_what_was_marked_by_a_clock_that_was_ahead_is_due_at_once(folders: Folders) -> None:
    folders.mark("n", since=9_000_000_000.0)
    assert folders.marked(1e12) == ["n"]


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


def test_what_can_be_no_store_is_not_listed_and_left_alone(
    folders: Folders, tmp_path: Path
) -> None:
    for folder in ("stores", "compaction/fresh", "compaction/replaced", "compaction/marks"):
        for name in ("lost+found", "Alice"):
            (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / folder / ".DS_Store").touch()
    assert folders.recover() == []
    assert folders.names() == ["n"]
    assert folders.marked(0) == []
    assert sorted(path.name for path in leftovers(tmp_path)) == 2 * [".DS_Store"] + 2 * [
        "Alice"
    ] + 2 * ["lost+found"]


# a store that is a link


def linked(tmp_path: Path, target: str, name: str = "n") -> Path:
    """Move a store elsewhere, as an operator does, and return where it is then."""
    store = tmp_path / "stores" / name
    elsewhere = Path(os.path.normpath(store.parent / target))
    elsewhere.parent.mkdir(exist_ok=True)
    store.rename(elsewhere)
    store.symlink_to(target)
    return elsewhere


@pytest.mark.parametrize("is_relative", [False, True])
def test_where_a_store_is_a_link_the_old_text_goes_from_where_it_leads(
    folders: Folders, tmp_path: Path, is_relative: bool
) -> None:
    elsewhere = linked(tmp_path, "../other/n" if is_relative else f"{tmp_path}/other/n")
    folders.exchange("n")
    folders.clear("n")
    assert not elsewhere.exists()
    assert elsewhere.parent.exists()
    assert leftovers(tmp_path) == []
    assert text(folders) == "new"


@pytest.mark.parametrize("is_relative", [False, True])
def test_an_exchange_of_a_link_that_a_crash_cut_short_is_brought_to_its_end(
    folders: Folders, tmp_path: Path, is_relative: bool
) -> None:
    elsewhere = linked(tmp_path, "../other/n" if is_relative else f"{tmp_path}/other/n")
    (tmp_path / "stores" / "n").rename(tmp_path / "compaction" / "replaced" / "n")
    assert Folders(tmp_path).recover() == ["n"]
    assert text(folders) == "old"
    (folders.begin("n") / "documents").write_text("new")
    folders.exchange("n")
    assert Folders(tmp_path).recover() == []
    assert not elsewhere.exists()
    assert leftovers(tmp_path) == []
    assert text(folders) == "new"


def test_an_exchange_of_a_relative_link_that_fails_leaves_it(
    folders: Folders, tmp_path: Path
) -> None:
    linked(tmp_path, "../other/n")
    shutil.rmtree(tmp_path / "compaction" / "fresh" / "n")
    with pytest.raises(FileNotFoundError):
        folders.exchange("n")
    assert (tmp_path / "stores" / "n" / "documents").read_text() == "old"
    assert leftovers(tmp_path) == []


def test_what_another_store_leads_to_is_not_deleted(folders: Folders, tmp_path: Path) -> None:
    elsewhere = linked(tmp_path, "../other/n")
    (tmp_path / "stores" / "twin").symlink_to(elsewhere)
    folders.exchange("n")
    folders.clear("n")
    assert leftovers(tmp_path) == []
    assert text(folders) == "new"
    assert (folders.store("twin") / "documents").read_text() == "old"


has_mounts = pytest.mark.skipif(
    not can_mount(), reason="no mount namespace of our own on this machine"
)
_CLEAR = """
import sys
from pathlib import Path
from hms_memory_gateway.folders import Folders
folders = Folders(Path(sys.argv[1]))
folders.exchange("n")
folders.clear("n")
print(*Path(sys.argv[2]).iterdir())
"""


@has_mounts
def test_a_disk_that_a_link_leads_to_is_emptied_and_stays(folders: Folders, tmp_path: Path) -> None:
    elsewhere = linked(tmp_path, "../other/n")
    mount = f'mount -t tmpfs tmpfs {elsewhere} && touch {elsewhere}/documents && exec "$0" "$@"'
    ended = subprocess.run(
        [*ALONE, mount, sys.executable, "-c", _CLEAR, str(tmp_path), str(elsewhere)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "\n"), ended.stderr
    assert leftovers(tmp_path) == []


# what a start cannot mend


def test_a_leftover_that_cannot_be_deleted_is_logged_and_the_others_go(
    folders: Folders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders.exchange("n")
    folders.store("a")
    (tmp_path / "compaction" / "replaced" / "a").touch()  # no folder
    assert Folders(tmp_path).recover() == []
    assert [path.name for path in leftovers(tmp_path)] == ["a"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "cannot be deleted (Not a directory)" in record.message


def test_an_undo_that_fails_is_said_and_the_only_copy_stays(
    folders: Folders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folders.store("a") / "documents").write_text("whole")
    for name in ("a", "n"):
        (tmp_path / "stores" / name).rename(tmp_path / "compaction" / "replaced" / name)
    (tmp_path / "stores" / "n").symlink_to(tmp_path / "missing")
    assert Folders(tmp_path).recover() == ["a"]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "cannot be put back (File exists)" in record.message
    with pytest.raises(FileExistsError):
        folders.store("n")
    folders.clear("n")
    (tmp_path / "stores" / "n").unlink()
    assert text(folders) == "old"


@pytest.mark.parametrize("place", ["stores", "compaction", "compaction/marks"])
def test_a_file_in_the_way_is_said(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(FolderUnusable, match=str(tmp_path / place)):
        Folders(tmp_path).recover()


def test_a_check_leaves_nothing(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    folders.check()
    Folders(tmp_path / "empty").check()
    assert sorted(tmp_path.rglob("*")) == before


_RECOVER = """
import sys
from pathlib import Path
from hms_memory_gateway.folders import Folders
Folders(Path(sys.argv[1])).recover()
"""


@has_mounts
def test_a_full_disk_keeps_nobody_from_a_start(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o nr_inodes=1 tmpfs {tmp_path} && exec "$0" "$@"'
    ended = subprocess.run(
        [*ALONE, mount, sys.executable, "-c", _RECOVER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
