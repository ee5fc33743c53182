"""The log: an object of JSON a line for machines, plain lines for whoever sits at a terminal.

No line holds memory text, a query, a path, a token or a namespace. Other packages never log at
their level `DEBUG`, where some of them print what they send.
"""

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, TextIO, TypeAlias

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

Format: TypeAlias = Literal["auto", "json", "text"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_NAME = "hms-memory-gateway"
_OURS = ("hms_memory_gateway", "hms_memory_tool")
_QUIET = {
    # hms-mcp acknowledges the end of a session with 202, which the SDK takes for a failure.
    "mcp.client.streamable_http": logging.ERROR,
    "httpx2": logging.WARNING,  # a line for each call of a shared engine
}

_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


def configure(form: Format, level: Level, stream: TextIO | None = None) -> None:
    """Send the log of this process to a stream; the last call counts.

    Args:
        form: `auto` is `text` on a terminal, and `json` elsewhere.
        level: the least that is logged.
        stream: stderr if it is not given.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.set_name(_NAME)
    is_text = form == "text" or (form == "auto" and stream.isatty())
    handler.setFormatter(_Text() if is_text else _json())
    handler.addFilter(_add)
    root = logging.getLogger()
    for former in [one for one in root.handlers if one.name == _NAME]:
        root.removeHandler(former)
    root.addHandler(handler)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(threshold, logging.INFO))
    for name in _OURS:
        logging.getLogger(name).setLevel(threshold)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(threshold, least))


@contextmanager
def about(**fields: str) -> Generator[None]:
    """Add fields, such as `request_id`, to every line that is logged inside."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def _add(record: logging.LogRecord) -> bool:
    record.__dict__.update(_about.get())
    return True


class _Text(logging.Formatter):
    """A line for people, with the request's id where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        request_id = getattr(record, "request_id", None)
        return f"{line} [{request_id}]" if request_id else line


def _json() -> logging.Formatter:
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's, the same text once more
    )
