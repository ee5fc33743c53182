"""From the options of a tool to the memory that it uses."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeAlias

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


MakeDirect: TypeAlias = Callable[..., Memory]
"""Makes a memory that still lacks its limits."""


def connect(
    *,
    command: str | None,
    args: Sequence[str],
    env: Mapping[str, str] | None,
    url: str | None,
    gateway: str | None,
    token: str | None,
    namespace: str | None,
    max_file_bytes: int | None,
    max_view_chars: int | None,
    total_seconds: float | None,
) -> Memory:
    if sum(option is not None for option in (command, url, gateway)) != 1:
        raise ValueError("give one of `command`, `url` and `gateway`")
    if command is None and (args or env):
        raise ValueError("`args` and `env` go with `command`")
    if command is not None and token is not None:
        raise ValueError("`token` goes with `url` or `gateway`")
    if gateway is not None:
        if max_file_bytes is not None or max_view_chars is not None:
            raise ValueError("`max_file_bytes` and `max_view_chars` are settings of the gateway")
        return GatewayMemory(
            gateway,
            namespace,
            token or os.environ.get("HMS_GATEWAY_TOKEN"),
            total_seconds=total_seconds or TOTAL_SECONDS,
        )
    if total_seconds is not None:
        raise ValueError("`total_seconds` goes with `gateway`")
    if namespace is not None and not _ENGINE_NAME.fullmatch(namespace):
        raise ValueError("`namespace` has to be 1 to 64 characters of [a-z0-9_-] for an hms-mcp")
    limits = {"max_file_bytes": max_file_bytes, "max_view_chars": max_view_chars or 16_000}
    if url is not None:
        return _shared(url, token or os.environ.get("HMS_MCP_TOKEN"), namespace)(**limits)
    return _started(str(command), args, env or {}, namespace)(**limits)


def _shared(url: str, token: str | None, namespace: str | None) -> MakeDirect:
    direct, session = _engine_modules()
    opening = partial(
        session.open_http, url, token, open_seconds=_OPEN_SECONDS, call_seconds=_CALL_SECONDS
    )
    return partial(direct.DirectMemory, opening, namespace, is_shared=namespace is not None)


def _started(
    command: str, args: Sequence[str], env: Mapping[str, str], namespace: str | None
) -> MakeDirect:
    direct, session = _engine_modules()
    is_shared = namespace is not None and "--namespace-arg" in args
    named = [] if namespace is None or is_shared else [f"--namespace={namespace}"]
    opening = partial(
        session.open_stdio,
        command,
        [*args, *named],
        env,
        open_seconds=_OPEN_SECONDS,
        call_seconds=_CALL_SECONDS,
        on_stderr=lambda line: logger.info("%s", line),
    )
    return partial(direct.DirectMemory, opening, namespace, is_shared=is_shared)


def _engine_modules() -> tuple[ModuleType, ModuleType]:
    """What speaks to an engine. A client of a gateway never needs it, nor has what it needs."""
    try:
        return import_module(f"{__package__}.direct"), import_module(f"{__package__}.session")
    except ImportError as error:
        raise ValueError(
            "an hms-mcp without a gateway needs `pip install hms-memory-gateway[direct]`"
        ) from error
