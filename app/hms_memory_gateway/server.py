"""Serve: listen, run the application, stop in order when told to."""

import logging
import os
import secrets
import signal
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from .application import create_app
from .connection import Connect
from .embedded import embedded
from .engine import Engine
from .folders import Folders
from .local import client_url
from .metrics import Metrics
from .ownership import Address, FolderTaken, owned, publish, unwritable
from .protocol import BoundedHead
from .readiness import Check, Readiness, answers, can_keep, can_run
from .settings import Settings
from .shared import shared
from .telemetry import Telemetry
from .tracing import configured

logger = logging.getLogger(__name__)

_BACKLOG = 2_048
# Longer than clients and proxies keep an idle connection, so that it is they who end it: whoever
# sends into one that is just being closed has no answer, and cannot tell what became of it.
KEEP_ALIVE_SECONDS = 75


class CannotServe(Exception):
    """The gateway cannot start here; the text says what to change."""


def serve(settings: Settings, engine: Engine, environ: Mapping[str, str]) -> int:
    """Serve from engines of our own, until a signal says to stop; finish what is under way.

    Args:
        settings: as the operator wants it.
        engine: the hms-mcp to run.
        environ: what of the engine's settings is forwarded to it.

    Returns:
        The exit code.

    Raises:
        CannotServe: the data folder or the address cannot be used.
        FolderUnusable: the data folder is not ours, or no place for stores.
        VariableInvalid: a variable of OpenTelemetry's cannot be used.
    """
    _make(settings.data_dir)
    checks = [
        ("engine_missing", can_run(engine.path)),
        ("data_dir_unwritable", can_keep(settings.data_dir)),
    ]
    with _owned(settings.data_dir):
        logger.info("hms-mcp %s at %s (%s)", engine.version, engine.path, engine.reason)
        logger.info("stores are kept in %s", settings.data_dir)
        folders = Folders(settings.data_dir)
        metrics = Metrics(engine_version=engine.version, data_dir=settings.data_dir)
        telemetry = Telemetry(metrics, configured(environ))
        connect = embedded(engine.path, settings, environ, telemetry.calls, telemetry.compacted)
        return _run(settings, connect, checks, telemetry, folders)


def serve_shared(url: str, settings: Settings, environ: Mapping[str, str]) -> int:
    """Like `serve`, from a shared engine.

    Args:
        url: the engine's address.
        settings: as the operator wants it.
        environ: `HMS_MCP_TOKEN` of it is the engine's token.

    Raises:
        CannotServe, VariableInvalid: as for `serve`, or it is the token that cannot be used.
    """
    logger.info("stores are kept by the hms-mcp at %s", url)
    telemetry = Telemetry(Metrics(), configured(environ))
    connect = shared(url, settings, environ, telemetry.calls)
    return _run(settings, connect, [("engine_unreachable", answers(url))], telemetry)


def _run(
    settings: Settings,
    connect: Connect,
    checks: Sequence[tuple[str, Check]],
    telemetry: Telemetry,
    folders: Folders | None = None,
) -> int:
    readiness = Readiness(checks, lambda: server.should_exit)
    gateway_id = secrets.token_hex(8)
    has_failed = False

    def end() -> None:
        nonlocal has_failed
        has_failed = server.should_exit = True

    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings, connect, readiness, folders, telemetry, end, gateway_id),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            http=BoundedHead,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(round(settings.drain_seconds), 1),
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it is done; then this handler makes it an exit.
        signal.signal(number, server.handle_exit)
    with _listen(settings.host, settings.port) as listener:
        _announce(settings, listener)
        if folders is not None:
            url = client_url(settings.host, listener.getsockname()[1])
            _publish(settings.data_dir, Address(url, gateway_id))
        try:
            server.run(sockets=[listener])
        finally:
            telemetry.close()
    return 0 if server.started and not has_failed else 1


@contextmanager
def _owned(data_dir: Path) -> Generator[None]:
    try:
        with owned(data_dir):
            yield
    except FolderTaken:
        raise CannotServe(
            f"Another gateway uses the data folder {data_dir}. Send requests to that one, or give "
            "this one a folder of its own with --data-dir or HMS_GATEWAY_DATA_DIR."
        ) from None


def _make(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(
            f"The data folder {data_dir} cannot be made ({error.strerror}). "
            "Choose another with --data-dir or HMS_GATEWAY_DATA_DIR."
        ) from error
    if not os.access(data_dir, os.W_OK | os.X_OK):
        raise unwritable(data_dir, "it is closed, or its disk is read-only")


def _publish(data_dir: Path, address: Address) -> None:
    try:
        publish(data_dir, address)
    except OSError as error:  # a full disk keeps nobody from reading
        logger.warning("commands will not find this gateway by its data folder: %s", error)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. On `::` that is IPv4, too, where the system can: all addresses."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=_BACKLOG)
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6,
        backlog=_BACKLOG,
        dualstack_ipv6=socket.has_dualstack_ipv6(),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listening(host, port)
    except OSError as error:
        raise CannotServe(
            f"Cannot listen on {host} port {port} ({error.strerror}). "
            "Choose another address with --host, or another port with --port: 0 takes any free one."
        ) from error


def _announce(settings: Settings, listener: socket.socket) -> None:
    if settings.token is None:
        logger.info("no token is set: whoever reaches this address can read and write")
    logger.info("listening on http://%s:%d", settings.url_host, listener.getsockname()[1])
