"""Who may be inside at the same time."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio


class Gate:
    """Many at once, or one alone, who waits for those inside and keeps the next ones out."""

    def __init__(self) -> None:
        self._entry = anyio.Lock()
        self._inside = 0
        self._left = anyio.Event()

    @asynccontextmanager
    async def shared(self) -> AsyncGenerator[None]:
        async with self._entry:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        async with self._entry:
            while self._inside:
                self._left = anyio.Event()
                await self._left.wait()
            yield
