"""Whether the gateway is ready, asked often and looked up seldom."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

_CACHE_SECONDS = 1.0

Check = Callable[[], bool]


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
        is_stopping: Check,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._checks = checks
        self._is_stopping = is_stopping
        self._clock = clock
        self._reason: str | None = None
        self._asked_at = -float("inf")

    def reason(self) -> str | None:
        """Why it is not ready, as a code; None when it is."""
        if self._is_stopping():
            return "draining"
        if self._clock() - self._asked_at >= _CACHE_SECONDS:
            failed = (code for code, check in self._checks if not check())
            self._reason = next(failed, None)
            self._asked_at = self._clock()
        return self._reason


def can_run(binary: Path) -> Check:
    """A check that an engine can be started."""
    return lambda: os.access(binary, os.X_OK)


def can_keep(data_dir: Path) -> Check:
    """A check that stores can be kept in a folder."""
    return lambda: os.access(data_dir, os.W_OK | os.X_OK)
