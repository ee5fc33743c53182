"""What can go wrong, by who can mend it.

    MemoryFault
    ├── Refused               Claude: the sentence is the tool's answer, with is_error
    │   └── Contended         Claude: other writers kept changing the file; nothing was written
    ├── NotFound              the store has no such key; the commands say it in their own words
    ├── AlreadyExists         the store has that key already
    ├── VersionConflict       the key changed since it was read
    ├── KeyReused             the caller: an idempotency key came with two different commands
    └── Unavailable           the operator, or time: the call never reached the engine
        ├── NotConnected      the engine had gone before the call was sent
        ├── ConnectionLost    the engine went away before it answered
        ├── TimedOut          the engine did not answer in time
        ├── EngineFault       the engine failed in a way that only its operator can mend
        └── OutcomeUnknown    one of these three, and it may or may not have written

`code` is a stable name for programs; the text is for people, and for Claude where it is refused.
"""

from typing import ClassVar


class MemoryFault(Exception):
    """Base of everything that this library raises on purpose."""

    code: ClassVar[str] = "memory_fault"


class Refused(MemoryFault):
    """The command cannot be done as asked; the text tells Claude what to change."""

    code = "refused"


class Contended(Refused):
    """Other writers changed the file at every attempt; nothing was written."""

    code = "contended"


class NotFound(MemoryFault):
    """The store has no such key."""

    code = "not_found"


class AlreadyExists(MemoryFault):
    """The store has that key already."""

    code = "already_exists"


class VersionConflict(MemoryFault):
    """The key was written or deleted after it was read."""

    code = "version_conflict"


class KeyReused(MemoryFault):
    """An idempotency key came again, with another command."""

    code = "idempotency_key_reused"


class Unavailable(MemoryFault):
    """The memory cannot be reached; nothing was written, so a retry is safe."""

    code = "unavailable"


class StoreLocked(Unavailable):
    """Another process has the store open."""

    code = "store_locked"


class NotConnected(Unavailable):
    """The connection had ended before the call was sent."""

    code = "not_connected"


class ConnectionLost(Unavailable):
    """The engine went away before it answered."""

    code = "connection_lost"


class TimedOut(Unavailable):
    """The engine did not answer in time."""

    code = "timed_out"


class EngineFault(Unavailable):
    """The engine answered with an error that only its operator can mend."""

    code = "engine_fault"


class OutcomeUnknown(Unavailable):
    """No answer came to a write that was sent: it may have happened."""

    code = "outcome_unknown"
