"""What a user has edited away or deleted, and the disk still holds."""

import anyio
from anyio.to_thread import run_sync

from hms_memory_tool.errors import Unavailable

from .folders import Folders


class Remains:
    """Knows whether an open store has remains, and keeps the store's mark on the disk true.

    Args:
        folders: where the mark is.
        namespace: the store's name.
    """

    def __init__(self, folders: Folders, namespace: str) -> None:
        self._folders = folders
        self._namespace = namespace
        self._is_marked = folders.is_marked(namespace)
        self._have_come = False  # since the store was last exchanged
        self._turn = anyio.Lock(fast_acquire=True)  # each edit passes it, and hardly ever waits

    def __bool__(self) -> bool:
        return self._is_marked

    async def add(self) -> None:
        """Say so before a write is sent that leaves some.

        Raises:
            Unavailable: it cannot be written down.
        """
        self._have_come = True
        async with self._turn:
            if not self._is_marked:
                try:
                    await run_sync(self._folders.mark, self._namespace)
                except OSError as error:
                    raise Unavailable(f"a deletion cannot be noted: {error}") from error
                self._is_marked = True

    def exchanged(self, have_come: bool) -> None:
        """Another store is in use; what was there is in the one that it replaced.

        Args:
            have_come: whether the new one has some already.
        """
        self._have_come = have_come

    async def gone(self, since: float) -> None:
        """The replaced store has left the disk.

        Args:
            since: when the new one was begun, in seconds since 1970.
        """
        async with self._turn:
            if self._have_come:
                await run_sync(self._folders.mark, self._namespace, since)
            else:
                await run_sync(self._folders.unmark, self._namespace)
                self._is_marked = False
