"""When an engine that failed may be started again."""

from dataclasses import dataclass

_FIRST_SECONDS = 0.1
_LAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that did not start, or died.

    Attributes:
        count: how many failed in a row, each soon after its start; 0 for one that ran well before.
        at: when the last one did.
        error: why it did not start, if it did not.
    """

    count: int
    at: float
    error: Exception | None

    @property
    def retry_at(self) -> float:
        """When the next attempt may be made."""
        backoff = _FIRST_SECONDS * 2.0 ** min(self.count - 1, 10) if self.count else 0.0
        return self.at + min(backoff, _LAST_SECONDS)
