"""From the options of a tool to the memory that it uses."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from .gateway import TOTAL_SECONDS, GatewayMemory
from .results import Recalled

logger = logging.getLogger(__name__)

_ENGINE_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_CALL_SECONDS = 10.0
_OPEN_SECONDS = 30.0


class Memory(Protocol):
    """Where commands are run, from any thread."""

    def open(self) -> None:
        """Get ready; raises a `MemoryFault`."""

    def execute(self, given: Mapping[str, Any]) -> str:
        """Run a command; raises a `MemoryFault`."""

    def recall(self, query: str, k: int) -> list[Recalled]:
        """Find files; raises a `MemoryFault`."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `connect` of a tool was called with; see there."""

    command: str | None
    args: Sequence[str]
    env: Mapping[str, str] | None
    url: str | None
    gateway: str | None
    token: str | None
    namespace: str | None
    max_file_bytes: int | None
    max_view_chars: int | None
    total_seconds: float | None

    def objection(self) -> str | None:
        """Why they do not go together, if they do not."""
        ways = [way for way in (self.command, self.url, self.gateway) if way is not None]
        limits = (self.max_file_bytes, self.max_view_chars)
        is_engine_name = self.namespace is None or _ENGINE_NAME.fullmatch(self.namespace)
        wrong = {
            "give one of `command`, `url` and `gateway`": len(ways) != 1,
            "`args` and `env` go with `command`": self.command is None and (self.args or self.env),
            "`token` goes with `url` or `gateway`": self.command is not None and self.token,
            "`total_seconds` goes with `gateway`": self.gateway is None
            and self.total_seconds is not None,
            "`max_file_bytes` and `max_view_chars` are settings of the gateway": self.gateway
            and limits != (None, None),
            "`max_file_bytes` has to be at least 1": _is_below(1, self.max_file_bytes),
            "`max_view_chars` has to be at least 100": _is_below(100, self.max_view_chars),
            "`namespace` has to be 1 to 64 characters of [a-z0-9_-] for an hms-mcp": not (
                self.gateway or is_engine_name
            ),
        }
        return next((sentence for sentence, applies in wrong.items() if applies), None)


def connect(options: Options) -> Memory:
    """Make the memory that the options ask for; nothing is opened yet.

    Raises:
        ValueError: they do not go together, or one of them can be none.
    """
    if objection := options.objection():
        raise ValueError(objection)
    if options.gateway is not None:
        return GatewayMemory(
            options.gateway,
            options.namespace,
            options.token or os.environ.get("HMS_GATEWAY_TOKEN"),
            total_seconds=TOTAL_SECONDS if options.total_seconds is None else options.total_seconds,
        )
    opening, is_shared = _shared(options) if options.url is not None else _started(options)
    memory: Memory = _module("direct").DirectMemory(
        opening,
        options.namespace,
        is_shared=is_shared,
        is_exclusive=options.url is None,
        max_file_bytes=options.max_file_bytes,
        max_view_chars=options.max_view_chars or 16_000,
    )
    return memory


def _is_below(least: int, value: int | None) -> bool:
    return value is not None and value < least


def _shared(options: Options) -> tuple[Callable[[], Any], bool]:
    session = _module("session")
    token = options.token or os.environ.get("HMS_MCP_TOKEN")
    if token and not session.can_be_sent(token):
        raise ValueError(
            "`token`, or HMS_MCP_TOKEN, has to be printable ASCII that does not end in white space"
        )
    opening = partial(
        session.open_http,
        options.url,
        token,
        open_seconds=_OPEN_SECONDS,
        call_seconds=_CALL_SECONDS,
    )
    return opening, options.namespace is not None


def _started(options: Options) -> tuple[Callable[[], Any], bool]:
    is_shared = options.namespace is not None and "--namespace-arg" in options.args
    is_named = options.namespace is not None and not is_shared
    opening = partial(
        _module("session").open_stdio,
        options.command,
        [*options.args, *([f"--namespace={options.namespace}"] if is_named else [])],
        options.env or {},
        open_seconds=_OPEN_SECONDS,
        call_seconds=_CALL_SECONDS,
        on_stderr=lambda line: logger.info("%s", line),
    )
    return opening, is_shared


def _module(name: str) -> ModuleType:
    """A part that speaks to an engine. A client of a gateway never needs it, nor has its needs."""
    try:
        return import_module(f"{__package__}.{name}")
    except ImportError as error:
        raise ValueError(
            "an hms-mcp without a gateway needs `pip install hms-memory-gateway[direct]`"
        ) from error
