"""Whether the gateway is ready, asked often and looked up seldom."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic

import anyio
import httpx2

_CACHE_SECONDS = 1.0
_HEALTH_SECONDS = 2.0

Check = Callable[[], Awaitable[bool]]


class Readiness:
    """Named checks, the first that fails being the reason; the outcome is kept for a second.

    Args:
        checks: reason code and check, in the order of asking.
        is_stopping: asked each time, so that a gateway told to stop is not ready at once.
        clock: seconds that only go forwards.
    """

    def __init__(
        self,
        checks: Sequence[tuple[str, Check]],
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._checks = checks
        self._is_stopping = is_stopping
        self._clock = clock
        self._reason: str | None = None
        self._asked_at = -float("inf")
        self._asking = anyio.Lock()

    async def reason(self) -> str | None:
        """Why it is not ready, as a code; None when it is."""
        if self._is_stopping():
            return "draining"
        async with self._asking:
            if self._clock() - self._asked_at >= _CACHE_SECONDS:
                self._reason = await self._failed()
                self._asked_at = self._clock()
        return self._reason

    async def _failed(self) -> str | None:
        for code, check in self._checks:
            if not await check():
                return code
        return None


def can_run(binary: Path) -> Check:
    """A check that an engine can be started."""
    return _accessible(binary, os.X_OK)


def can_keep(data_dir: Path) -> Check:
    """A check that stores can be kept in a folder."""
    return _accessible(data_dir, os.W_OK | os.X_OK)


def answers(url: str) -> Check:
    """A check that a shared engine is there: it says so itself, without a token."""

    async def check() -> bool:
        try:
            async with httpx2.AsyncClient(timeout=_HEALTH_SECONDS) as http:
                return (await http.get(httpx2.URL(url).join("/health"))).status_code == 200
        except httpx2.HTTPError:
            return False

    return check


def _accessible(path: Path, mode: int) -> Check:
    async def check() -> bool:
        return os.access(path, mode)

    return check
