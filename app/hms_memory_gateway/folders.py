"""The folders of the embedded stores, and how a compacted one takes the place of another.

```
<data folder>/
  stores/NAME               the store of a namespace, as the engine keeps it
  compaction/fresh/NAME     its successor, while it is filled
  compaction/replaced/NAME  what it was before, until that is deleted
  compaction/sizes/NAME     the size that it had when it was new
  compaction/marks/NAME     there since something was edited or deleted; its time says since when
```

An exchange is two renames, and then a sync of both folders that know the successor, since commands
wait for it. A crash leaves one of three states: nothing replaced yet (what is in `fresh` may be
half, and goes), replaced and not succeeded (undone), succeeded (finished). `recover` tells them
apart by what is there alone.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep, time

from .durable import sync

_BLOCK_BYTES = 512  # the unit of `st_blocks`, whatever the file system's own is
_TRIES = 50  # to delete a folder that a dying engine still writes into
_PAUSE_SECONDS = 0.1


class Folders:
    """Where each store lies; each change is on the disk when the method returns.

    Args:
        data_dir: the gateway's data folder.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._stores = data_dir / "stores"
        compaction = data_dir / "compaction"
        self._fresh = compaction / "fresh"
        self._replaced = compaction / "replaced"
        self._sizes = compaction / "sizes"
        self._marks = compaction / "marks"

    def store(self, name: str) -> Path:
        """The folder of a store, made if there is none."""
        self._undo(name)
        return _made(self._stores / name)

    def has(self, name: str) -> bool:
        """Whether there is such a store."""
        return (self._stores / name).is_dir()

    def names(self) -> list[str]:
        """Every store there is."""
        return sorted(path.name for path in _children(self._stores))

    def recover(self) -> list[str]:
        """Finish or undo every exchange that a crash cut short, and return whose were undone.

        Call it before any engine is started.
        """
        undone = [path.name for path in list(_children(self._replaced)) if self._undo(path.name)]
        for replaced in _children(self._replaced):
            _delete(replaced)
        for fresh in _children(self._fresh):
            _delete(fresh)
        return undone

    def begin(self, name: str) -> Path:
        """An empty folder for the successor of a store."""
        self.discard(name)
        self.clear(name)
        _made(self._replaced)
        return _made(self._fresh / name)

    def discard(self, name: str) -> None:
        """Delete a successor that is not to be."""
        _delete(self._fresh / name)

    def exchange(self, name: str) -> None:
        """Put the successor in the place of the store. Engines may be open in both: they work in
        their folder, wherever that is moved to.

        Raises:
            OSError: it could not be done, and everything is where it was.
        """
        fresh, store = self._fresh / name, self._stores / name
        replaced = self._replaced / name
        try:
            store.rename(replaced)
            fresh.rename(store)
            sync(self._stores)
            sync(self._fresh)
        except OSError:
            if replaced.exists():
                if store.exists():
                    store.rename(fresh)
                replaced.rename(store)
            raise

    def sync(self, name: str) -> None:
        """See to it that a successor is on the disk, to its last file and name."""
        for folder, _, files in os.walk(self._fresh / name):
            for file in files:
                sync(Path(folder) / file)
            sync(Path(folder))

    def clear(self, name: str) -> None:
        """Delete what was replaced; nothing uses it any more."""
        if self.has(name):  # else it is all that there is
            _delete(self._replaced / name)

    def _undo(self, name: str) -> bool:
        """Put back what was replaced, if nothing has taken its place; whether that was so."""
        replaced = self._replaced / name
        is_half = replaced.exists() and not self.has(name)
        if is_half:
            _move(replaced, self._stores / name)
        return is_half

    def journal_bytes(self, name: str) -> int:
        """What a store takes on the disk; its files are longer, with holes."""
        return disk_bytes(self._stores / name)

    def note_size(self, name: str) -> None:
        """Remember how large a successor is that has just been filled."""
        _made(self._sizes)
        (self._sizes / name).write_text(str(disk_bytes(self._fresh / name)))

    def fresh_bytes(self, name: str) -> int:
        """How large a store was when it was last compacted; 0 if it never was."""
        try:
            return int((self._sizes / name).read_text())
        except (FileNotFoundError, ValueError):  # it is a hint, written without a sync
            return 0

    def free_bytes(self) -> int:
        """The room that is left for the stores."""
        return shutil.disk_usage(self._data_dir).free

    def mark(self, name: str, since: float | None = None) -> None:
        """Write down that a store holds what its user has edited away or deleted.

        Args:
            name: the store.
            since: seconds since 1970, whatever was written down before; without it, now, unless
                an earlier time is.
        """
        mark = _made(self._marks) / name
        if not mark.exists():
            mark.touch()
            sync(self._marks)
        if since is not None:
            os.utime(mark, (since, since))

    def unmark(self, name: str) -> None:
        """Write down that it does not any more."""
        (self._marks / name).unlink(missing_ok=True)

    def is_marked(self, name: str) -> bool:
        """Whether it does."""
        return (self._marks / name).exists()

    def marked(self, seconds: float) -> list[str]:
        """The stores that have for so many seconds, the longest first."""
        times: dict[str, float] = {}
        for mark in _children(self._marks):
            with suppress(FileNotFoundError):
                if self.has(mark.name):
                    times[mark.name] = mark.stat().st_mtime
        due = (name for name, since in times.items() if since + seconds <= time())
        return sorted(due, key=times.__getitem__)


def _children(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from folder.iterdir()


def _made(folder: Path) -> Path:
    """Make a folder, and see to it that its name is on the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)
    return folder


def _move(source: Path, target: Path) -> None:
    _made(target.parent)
    source.rename(target)
    sync(target.parent)
    sync(source.parent)


def _delete(folder: Path) -> None:
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        sleep(_PAUSE_SECONDS)
    else:
        shutil.rmtree(folder)  # says why not
    if folder.parent.exists():
        sync(folder.parent)


def disk_bytes(folder: Path) -> int:
    """What the files in a folder take on the disk; an engine's are longer, with holes."""
    used = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # the engine replaces its own
                used += (Path(parent) / file).stat().st_blocks * _BLOCK_BYTES
    return used
