"""Idempotency keys that outlive the process: written with the change itself, or not at all.

A file's metadata names the last keys that changed it, so a repeated command finds out, from the
store alone, that it was done. Pure.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import KeyReused

FIELD = "hms-memory-gateway.keys"
RECORD_PREFIX = "hms-memory-gateway:deleted:"  # keys of deletions, which leave no file to write in
_KEPT = 8  # of the last changes of a file; a retry comes within seconds
_NAME_DIGITS = 20
_BODY_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Key:
    """What tells a repeated command from a new one: digests of the caller's key and of the body."""

    name: str
    body: str

    @classmethod
    def of(cls, name: str, body: Mapping[str, Any]) -> "Key":
        """The key that a caller sent with a body."""
        digest = _digest(json.dumps(body, sort_keys=True))
        return cls(_digest(name)[:_NAME_DIGITS], digest[:_BODY_DIGITS])

    @property
    def record(self) -> str:
        """Where a deletion under this key is recorded."""
        return RECORD_PREFIX + self.name


@dataclass(frozen=True, slots=True)
class Sent:
    """A write whose answer may not have come: the version it replaces, the text, the line."""

    version: str
    text: str
    line: int


@dataclass(slots=True)
class Attempt:
    """One command, however often it is tried, and what its earlier tries have sent.

    Args:
        key: the caller's, who may send the command again, long after.
        seen: the versions of what it deletes or moves, once it has begun to.
        sent: the writes of an edit, until it is known that they did not happen.
    """

    key: Key | None = None
    seen: dict[str, str] | None = None
    sent: list[Sent] = field(default_factory=list)


def note_of(metadata: Mapping[str, Any], key: Key | None) -> str | None:
    """What was noted when this key changed the file; None if it did not, or if there is no key.

    Raises:
        KeyReused: the key came with another body.
    """
    for entry in _entries(metadata) if key else ():
        name, _, rest = entry.partition("=")
        body, _, note = rest.partition(":")
        if key and name == key.name:
            check_body(body, key)
            return note
    return None


def check_body(body: str, key: Key) -> None:
    """Refuse a key that came with another body before."""
    if body != key.body:
        raise KeyReused("the key was used for another command")


def signed(
    metadata: Mapping[str, Any], key: Key | None, note: str, max_bytes: int
) -> Mapping[str, Any]:
    """The metadata of a file that this key changes; as it was, where there is no room for keys."""
    if key is None:
        return metadata
    entries = [*_entries(metadata), f"{key.name}={key.body}:{note}"][-_KEPT:]
    new = {**metadata, FIELD: " ".join(entries)}
    is_small = len(json.dumps(new, ensure_ascii=False).encode()) <= max_bytes
    return new if is_small else metadata


def _entries(metadata: Mapping[str, Any]) -> list[str]:
    value = metadata.get(FIELD)
    return value.split() if isinstance(value, str) else []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
