"""Repeated requests: the same key of the same namespace is answered with the first answer.

Here while the process lives, within bounds; what a key has changed is also written with the change
itself (`hms_memory_tool.keys`), which is how a repetition is recognised after a restart.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any

import anyio

from hms_memory_tool.errors import KeyReused
from hms_memory_tool.keys import Key

from .problems import KeyInvalid

MAX_KEY_BYTES = 255
_LOOK = 100  # of the oldest entries, at each new one: more than one leaves for each that comes
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")

Answer = dict[str, Any]


def key_name(values: list[bytes]) -> str | None:
    """The caller's key, from every value of the header `Idempotency-Key`.

    Raises:
        KeyInvalid: the header is empty, repeated, over 255 bytes, or not printable ASCII.
    """
    if not values:
        return None
    value = values[0].strip(b" \t")
    if len(values) > 1 or len(value) > MAX_KEY_BYTES or not _PRINTABLE.fullmatch(value):
        raise KeyInvalid
    return value.decode("ascii")


@dataclass(slots=True)
class _Entry:
    """A request under a key; `answer` is None while it is worked on."""

    body: str
    at: float
    answer: Answer | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)


class Answers:
    """The answers given under keys, the oldest forgotten first.

    Args:
        max_answers: how many are kept.
        max_chars: how many characters they may have together.
        keep_seconds: how long each is kept; retries come within seconds.
        clock: seconds that only go forwards.

    Attributes:
        replays: how often a request got the answer of an earlier one.
    """

    def __init__(
        self,
        *,
        max_answers: int = 10_000,
        max_chars: int = 16 << 20,
        keep_seconds: float = 600,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._max_answers = max_answers
        self._max_chars = max_chars
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._chars = 0
        self.replays = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def once(self, namespace: str, key: Key, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Give the first answer under this key; do the work if there is none.

        Whoever comes while it is worked on waits for that answer; if it fails, the next one
        in line does the work.

        Raises:
            KeyReused: the key came with another body before.
        """
        name = (namespace, key.name)
        while (entry := self._entries.get(name)) is not None:
            if entry.body != key.body:
                raise KeyReused("the key was used for another command")
            if entry.answer is not None:
                self.replays += 1
                return entry.answer
            await entry.ended.wait()
        self._entries[name] = entry = _Entry(key.body, self._clock())
        try:
            entry.answer = await work()
            self._chars += _size(entry.answer)
        finally:
            if entry.answer is None:
                del self._entries[name]
            entry.ended.set()
        self._forget(self._clock())
        return entry.answer

    def _forget(self, now: float) -> None:
        """Drop what is too old or too much, from the oldest on; never what is worked on."""
        for name in list(islice(self._entries, _LOOK)):
            entry = self._entries[name]
            is_old = entry.at + self._keep_seconds <= now
            is_much = len(self._entries) > self._max_answers or self._chars > self._max_chars
            if not (is_old or is_much):
                return
            if entry.answer is not None:
                self._chars -= _size(entry.answer)
                del self._entries[name]


def _size(answer: Answer) -> int:
    return len(answer["content"])
