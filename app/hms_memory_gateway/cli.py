"""The command line: serve (without a command), or show the engine."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from .engine import Engine, EngineMissing, default_cache, ensure, progress_for
from .server import CannotServe, serve, serve_shared
from .settings import PREFIX, Settings

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0, 1 if something that the gateway needs is not there, 2 for wrong settings, 130 when
        interrupted.
    """
    given = vars(_parser().parse_args(arguments))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # hms-mcp acknowledges the end of a session with 202, which the SDK takes for a failure.
    logging.getLogger("mcp.client.streamable_http").setLevel(logging.ERROR)
    try:
        return _show_engine() if given["command"] == "engine" else _serve(given)
    except ValidationError as error:
        _say("\n".join(_explained(error)), sys.stderr)
        return 2
    except (EngineMissing, CannotServe) as error:
        _say(str(error), sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _show_engine() -> int:
    engine = _engine()
    _say(f"{engine.path}\nhms-mcp {engine.version} ({engine.reason})", sys.stdout)
    return 0


def _serve(given: Mapping[str, Any]) -> int:
    settings = Settings(**{name: given[name] for name in _fields() if given[name] is not None})
    for name in _unknown(os.environ):
        logger.warning("%s is set, but is no setting of this version", name)
    if settings.hms_url is not None:
        return serve_shared(settings.hms_url, settings, os.environ)
    return serve(settings, _engine(), os.environ)


def _engine() -> Engine:
    return ensure(os.environ, default_cache(), progress_for(sys.stderr))


def _fields() -> list[str]:
    return list(Settings.model_fields)


def _unknown(environ: Mapping[str, str]) -> Iterator[str]:
    known = {f"{PREFIX}{name.upper()}" for name in _fields()}
    return (name for name in sorted(environ) if name.startswith(PREFIX) and name not in known)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hms-memory-gateway",
        description="Claude's memory tool over HTTP, from Holographic Memory stores. "
        "Without a command it serves.",
        epilog=f"Each option can be set in the environment too: --port is {PREFIX}PORT.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('hms-memory-gateway')}"
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["engine"],
        help="engine: say which hms-mcp is used and why, and install it if there is none",
    )
    for name, field in Settings.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        kind = {"action": "store_true", "default": None} if field.annotation is bool else {}
        parser.add_argument(option, help=field.description, **kind)  # type: ignore[arg-type]
    return parser


def _explained(error: ValidationError) -> Iterator[str]:
    """Say what is wrong with which setting, and never the value: it may be a token."""
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        name = "".join(f"{PREFIX}{str(one).upper()}: " for one in detail["loc"][:1])
        yield name + detail["msg"].removeprefix("Value error, ")


def _say(text: str, stream: Any) -> None:
    print(text, file=stream)
