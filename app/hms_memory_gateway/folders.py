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
apart by what is there alone. The store of a namespace may be a link to a folder elsewhere: the link
is renamed, and its successor is a folder.
"""

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep, time

from .durable import sync
from .namespaces import for_log, is_store_name

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 512  # the unit of `st_blocks`, whatever the file system's own is
_TRIES = 50  # to delete a folder that a dying engine still writes into
_PAUSE_SECONDS = 0.1
_PASSING = (errno.ENOTEMPTY, errno.ENOENT)  # what it causes, unlike what stays as it is
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FolderUnusable(Exception):
    """The data folder cannot be used as it is.

    Args:
        found: what is wrong with it.
        advice: what to do about it, in a sentence.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(f"{found}. {advice}")
        self.found = found
        self.advice = advice


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
        return sorted(_names(self._stores))

    def check(self) -> None:
        """See that stores can be kept and exchanged; nothing that is missing is made.

        Raises:
            FolderUnusable: they cannot.
        """
        for other in (self._replaced, self._fresh, self._sizes, self._marks):
            _try_to_move(_nearest(self._stores), _nearest(other))

    def recover(self) -> list[str]:
        """Finish or undo every exchange that a crash cut short, and return whose were undone.

        Call it before any engine is started. What cannot be done for one store is logged: it
        stays out of use, and keeps nobody from the others.

        Raises:
            FolderUnusable: stores cannot be kept or exchanged here.
        """
        self.check()
        undone = [name for name in sorted(_names(self._replaced)) if self._recovers(name)]
        for name in sorted(_names(self._replaced)):
            if self.has(name):  # else it is all that there is
                self._tidy(self._replaced / name)
        for name in sorted(_names(self._fresh)):
            self._tidy(self._fresh / name)
        return undone

    def begin(self, name: str) -> Path:
        """An empty folder for the successor of a store."""
        self.discard(name)
        self.clear(name)
        _made(self._replaced)
        return _made(self._fresh / name)

    def discard(self, name: str) -> None:
        """Delete a successor that is not to be."""
        self._delete(self._fresh / name)

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
            if os.path.lexists(replaced):
                if os.path.lexists(store):
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
            self._delete(self._replaced / name)

    def _undo(self, name: str) -> bool:
        """Put back what was replaced, if nothing has taken its place; whether that was so."""
        replaced = self._replaced / name
        store = self._stores / name
        is_half = os.path.lexists(replaced) and not self.has(name)
        if is_half:
            if os.path.lexists(store):  # a link to a disk that is missing may not be written over
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(store))
            _move(replaced, store)
        return is_half

    def _recovers(self, name: str) -> bool:
        try:
            return self._undo(name)
        except OSError as error:
            logger.error(  # noqa: TRY400 - the trace would say nothing more
                "store %s is not in its place, and cannot be put back (%s): all that there is of "
                "it is the folder of its name in %s",
                for_log(name),
                error.strerror,
                self._replaced,
            )
            return False

    def _tidy(self, folder: Path) -> None:
        try:
            self._delete(folder)
        except OSError as error:
            logger.warning(
                "store %s: what a compaction left of it in %s cannot be deleted (%s)",
                for_log(folder.name),
                folder.parent,
                error.strerror,
            )

    def _delete(self, folder: Path) -> None:
        """Delete what was a store; where that is a link, what it leads to, too."""
        if folder.is_symlink():
            # A relative one was made to be read among the stores.
            target = _real(self._stores / folder.readlink())
            if not any(_real(one).is_relative_to(target) for one in _children(self._stores)):
                _remove(target)
                sync(_nearest(target))
            folder.unlink()
        else:
            _remove(folder)
        if folder.parent.exists():
            sync(folder.parent)

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
        """The stores that have for so many seconds, the longest first.

        What was marked by a clock that was ahead may have been so for any time.
        """
        times: dict[str, float] = {}
        for name in _names(self._marks):
            with suppress(FileNotFoundError):
                if self.has(name):
                    times[name] = (self._marks / name).stat().st_mtime
        now = time()
        due = (name for name, since in times.items() if not now - seconds < since <= now)
        return sorted(due, key=times.__getitem__)


def _children(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from folder.iterdir()


def _names(folder: Path) -> Iterator[str]:
    """The stores that have something there, whatever else an operator or a system put there."""
    return (path.name for path in _children(folder) if is_store_name(path.name))


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


def _remove(folder: Path) -> None:
    """Delete a folder and all in it; where the folder itself has to stay, as that of a mount,
    all in it.
    """
    for tries_left in reversed(range(_TRIES)):
        shutil.rmtree(folder, ignore_errors=True)  # all that can be
        if not any(_children(folder)):
            break
        try:
            shutil.rmtree(folder)  # says why not
        except OSError as error:
            if not tries_left or error.errno not in _PASSING:
                raise
        sleep(_PAUSE_SECONDS)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _nearest(folder: Path) -> Path:
    """A folder, or what is there of the way to it."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _try_to_move(source: Path, target: Path) -> None:
    """Move an empty folder: mounts that part one file system show in no other way."""
    tried = None
    try:
        for folder in (source, target):
            os.scandir(folder).close()
        tried = Path(tempfile.mkdtemp(prefix=".try-", dir=source))
        tried = tried.rename(target / tried.name)
    except OSError as error:
        if error.errno in _FULL:
            return  # there may be more to read and to delete than to write
        raise FolderUnusable(
            f"Nothing can be moved from {source} to {target} ({error.strerror})",
            "Stores are exchanged like that: let both be folders of one file system, with no "
            "mount in between, that this user can write to.",
        ) from error
    finally:
        if tried is not None:
            tried.rmdir()


def disk_bytes(folder: Path) -> int:
    """What the files in a folder take on the disk; an engine's are longer, with holes."""
    used = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # the engine replaces its own
                used += (Path(parent) / file).stat().st_blocks * _BLOCK_BYTES
    return used
