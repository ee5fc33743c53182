"""What is written to a store, as whoever copies it meanwhile has to know it."""

from collections import Counter
from collections.abc import Iterable


class Changes:
    """Keys that were written to while somebody follows, and those of writes without an answer.

    A write whose answer does not come may be done at any time until its engine has gone, long
    after it was given up, and others may see it then. So its key is kept for as long as that.
    """

    def __init__(self) -> None:
        self._written: dict[str, None] | None = None  # in the order of their last write
        self._unanswered: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._written or ())

    def __contains__(self, key: str) -> bool:
        """Whether what a store has under this key may be another text at any moment, or was."""
        return self.is_written(key) or self._unanswered[key] > 0

    @property
    def unanswered(self) -> list[str]:
        """The keys of writes that may still be done."""
        return list(self._unanswered)

    def follow(self) -> None:
        """Begin to keep what is written."""
        self._written = {}

    def leave(self) -> None:
        """Keep it no longer."""
        self._written = None

    def exchanged(self) -> None:
        """The engine in which writes were left without an answer is used no longer."""
        self._unanswered.clear()

    def is_written(self, key: str) -> bool:
        """Whether it was written to, and not taken since."""
        return key in (self._written or ())

    def take(self) -> list[str]:
        """All that were written to, to be copied now."""
        keys = list(self._written or ())
        self.follow()
        return keys

    def put_back(self, keys: Iterable[str]) -> None:
        """What was taken is still to be copied, before what has come since."""
        since = self._written or {}
        self._written = {**dict.fromkeys(key for key in keys if key not in since), **since}

    def sent(self, keys: Iterable[str]) -> None:
        """A write is sent."""
        self._unanswered.update(keys)

    def refused(self, keys: Iterable[str]) -> None:
        """It was not done, and will not be."""
        self._unanswered.subtract(keys)
        self._unanswered += Counter()  # drops those with none left

    def written(self, keys: Iterable[str]) -> None:
        """It was done."""
        self.refused(keys)
        if self._written is not None:
            for key in keys:
                self._written.pop(key, None)
                self._written[key] = None
