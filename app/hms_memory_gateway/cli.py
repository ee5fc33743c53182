"""The command line: serve (without a command), or one of the commands beside it."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias

from pydantic import ValidationError

from . import logs
from .compact_command import compact_stores
from .doctor import Given, report
from .engine import Engine, EngineMissing, default_cache, ensure, progress_for
from .folders import FolderUnusable
from .problems import CompactionUnsupported
from .ring import RingInvalid
from .ring_commands import add_ring
from .server import CannotServe, serve, serve_shared
from .settings import PREFIX, Settings, VariableInvalid
from .shared import engine_token
from .tracing import configured

logger = logging.getLogger(__name__)

Command: TypeAlias = Callable[[Mapping[str, Any]], int]
"""Runs with what was given on the command line, returns the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0, 1 if something that the gateway needs is not there, or nobody reads what is written any
        more, 2 for wrong settings, 130 when interrupted.
    """
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:  # it was closed before the start
                sys.stdout.flush()  # what is left would break the pipe where nobody catches it
    except BrokenPipeError:
        # Python flushes once more at its exit, into nothing then: "Note on SIGPIPE" of `signal`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    given = vars(_parser().parse_args(arguments))
    command: Command = given.pop("run")
    logs.configure("auto", "info")
    try:
        return command(given)
    except ValidationError as error:
        _say("\n".join(_explained(error)), sys.stderr)
        return 2
    except (RingInvalid, VariableInvalid) as error:
        _say(str(error), sys.stderr)
        return 2
    except (EngineMissing, CannotServe, FolderUnusable) as error:
        _say(str(error), sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _show_engine(given: Mapping[str, Any]) -> int:
    engine = _engine()
    _say(f"{engine.path}\nhms-mcp {engine.version} ({engine.reason})", sys.stdout)
    return 0


def _serve(given: Mapping[str, Any]) -> int:
    settings = _settings(given)
    logs.configure(settings.log_format, settings.log_level)
    for name in _unknown(os.environ):
        logger.warning("%s is set, but is no setting of this version", name)
    if settings.hms_url is not None:
        return serve_shared(settings.hms_url, settings, os.environ)
    return serve(settings, _engine(), os.environ)


def _compact(given: Mapping[str, Any]) -> int:
    settings = _settings(given)
    if settings.hms_url is not None:
        raise CannotServe(CompactionUnsupported.detail)
    if not os.path.isdir(settings.data_dir):  # that of a Path raises where it may not look
        raise CannotServe(f"There is no data folder {settings.data_dir}: --data-dir says where.")
    return compact_stores(settings, _engine, os.environ, given["name"])


def _trace(environ: Mapping[str, str]) -> None:
    """Begin to trace as the gateway would, and end: how a wrong variable shows."""
    configured(environ).close()


def _examine(given: Mapping[str, Any]) -> int:
    logging.getLogger().setLevel(logging.WARNING)  # what it tries is no news
    settings, wrong = None, list[str]()
    try:
        settings = _settings(given)
    except ValidationError as error:
        wrong = list(_explained(error))
    is_shared = settings is not None and settings.hms_url is not None
    for obey in (_trace, engine_token) if is_shared else (_trace,):
        try:
            obey(os.environ)
        except VariableInvalid as error:
            wrong.append(str(error))
    unknown = list(_unknown(os.environ))
    set_up = Given(settings=settings, wrong=wrong, unknown=unknown, environ=os.environ)
    return report(set_up, default_cache(), as_json=given.get("json", False))


def _settings(given: Mapping[str, Any]) -> Settings:
    return Settings(**{name: given[name] for name in _fields() if name in given})


def _engine() -> Engine:
    return ensure(os.environ, default_cache(), progress_for(sys.stderr))


def _fields() -> list[str]:
    return list(Settings.model_fields)


def _unknown(environ: Mapping[str, str]) -> Iterator[str]:
    known = {f"{PREFIX}{name.upper()}" for name in _fields()}
    return (name for name in sorted(environ) if name.startswith(PREFIX) and name not in known)


def _parser() -> argparse.ArgumentParser:
    options = _options()
    parser = argparse.ArgumentParser(
        prog="hms-memory-gateway",
        description="Claude's memory tool over HTTP, from Holographic Memory stores. "
        "Without a command it serves.",
        epilog=f"Each option can be set in the environment too: --port is {PREFIX}PORT.",
        parents=[options],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('hms-memory-gateway')}"
    )
    parser.set_defaults(run=_serve)
    commands = parser.add_subparsers(title="commands", metavar="")
    engine = commands.add_parser(
        "engine", help="say which hms-mcp is used and why, and install it if there is none"
    )
    engine.set_defaults(run=_show_engine)
    namespaces = commands.add_parser("namespaces", help="keep the stores of namespaces")
    verbs = namespaces.add_subparsers(title="commands", metavar="", required=True)
    compact = verbs.add_parser(
        "compact",
        help="rewrite stores with what is live alone: what was edited or deleted is gone then",
        parents=[options],
        allow_abbrev=False,
    )
    which = compact.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", help="namespace, or name of its store")
    which.add_argument("--all", action="store_true", help="every store, one after the other")
    compact.set_defaults(run=_compact)
    doctor = commands.add_parser(
        "doctor",
        parents=[options],
        argument_default=argparse.SUPPRESS,
        help="check all that a gateway needs, and say what to do about what is wrong",
    )
    doctor.add_argument("--json", action="store_true", help="for scripts: one JSON object")
    doctor.set_defaults(run=_examine)
    add_ring(commands)
    return parser


def _options() -> argparse.ArgumentParser:
    """The settings as options, for every command that needs them; what is not given is absent."""
    options = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for name, field in Settings.model_fields.items():
        kind = {"action": "store_true"} if field.annotation is bool else {}
        options.add_argument(
            f"--{name.replace('_', '-')}",
            help=field.description,
            **kind,  # type: ignore[arg-type]
        )
    return options


def _explained(error: ValidationError) -> Iterator[str]:
    """Say what is wrong with which setting, and never the value: it may be a token."""
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        name = "".join(f"{PREFIX}{str(one).upper()}: " for one in detail["loc"][:1])
        yield name + detail["msg"].removeprefix("Value error, ")


def _say(text: str, stream: Any) -> None:
    print(text, file=stream)
