"""What is under way on several files at once, written down in the store before it begins.

The engine changes one memory at a time. So a rename, and the deletion of a directory, are declared
first; whoever opens the store after a crash finds the declaration and makes the state the old one
or the new one. It lies outside `/memories`, where no command and no recall looks.
"""

import json
from dataclasses import asdict, dataclass

from .errors import EngineFault

KEY = "hms-memory-gateway:intent"
STALE_SECONDS = 120.0  # after which another gateway of a shared engine is taken for dead


@dataclass(frozen=True, slots=True)
class Intent:
    """A rename (`new` is set) or a deletion of `old`.

    A rename is undone until it `is_committed`, and finished from then on; a deletion is always
    finished.
    """

    old: str
    new: str | None = None
    is_committed: bool = True

    def to_text(self) -> str:
        """As it stands in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Intent":
        """Read one.

        Raises:
            EngineFault: it is none of ours: a later version wrote it, or somebody else.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise EngineFault(f"{KEY} in the store cannot be read") from error
