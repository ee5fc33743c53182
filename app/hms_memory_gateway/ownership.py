"""Who may use a data folder: one process, since a store can be open in one process alone."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".gateway.lock"


class FolderTaken(Exception):
    """Another gateway uses the data folder."""


@contextmanager
def owned(data_dir: Path) -> Generator[None]:
    """Be the one who uses a data folder that exists.

    Raises:
        FolderTaken: somebody else is.
    """
    lock = FileLock(data_dir / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise FolderTaken from None
    try:
        yield
    finally:
        lock.release()
