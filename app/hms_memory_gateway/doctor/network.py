"""Who may call, who listens, and an engine that is reached over the network."""

import errno

import anyio
import httpx2

from hms_memory_gateway.local import client_options
from hms_memory_gateway.ownership import Address, published
from hms_memory_gateway.readiness import answers
from hms_memory_gateway.server import listening
from hms_memory_gateway.shared import engine_token
from hms_memory_tool.errors import MemoryFault
from hms_memory_tool.session import open_http
from hms_memory_tool.store import ToolFailed

from .findings import Case, Finding, failure, ok, warning

_ASK_SECONDS = 5.0
_MIN_TOKEN = 16
_OTHER_PORT = "choose another with --port or HMS_GATEWAY_PORT"
# How it shows that an answer is not a gateway's: it is no JSON, or JSON of another shape.
_NO_GATEWAY = (ValueError, RecursionError, TypeError, KeyError)
_REASONS = {
    "draining": "It has been told to stop: wait for its end.",
    "engine_missing": "Put its hms-mcp back to where it was at its start, or restart it.",
    "data_dir_unwritable": "Let it write to its data folder.",
    "engine_unreachable": "Start the shared hms-mcp, or let the gateway reach it.",
}


def access(case: Case) -> Finding:
    """No stranger can read or write memory."""
    settings = case.settings
    if settings.token is None and not settings.is_loopback:
        return warning(
            f"whoever reaches {settings.host} can read and write every memory",
            "Set HMS_GATEWAY_TOKEN, unless something in front of the gateway keeps strangers out.",
        )
    if settings.token is None and "*" in settings.allowed_hosts:
        return warning(
            "a page in a browser on this machine can reach the memory",
            "Set HMS_GATEWAY_TOKEN, or name the hosts in HMS_GATEWAY_ALLOWED_HOSTS.",
        )
    if settings.token is None:
        return ok("without a token, for this machine alone")
    length = len(settings.token.get_secret_value())
    if length < _MIN_TOKEN:
        return warning(
            f"the token has {length} characters, and may be guessed",
            f"Set HMS_GATEWAY_TOKEN to {_MIN_TOKEN} random characters or more: "
            "openssl rand -hex 32 prints some.",
        )
    return ok("with a token")


def port(case: Case) -> Finding:
    """The gateway can listen, or does so already."""
    if case.has_gateway and (address := published(case.settings.data_dir)):
        return _listener(case, address)
    host, number = case.settings.host, case.settings.port
    try:
        listening(host, number).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _listener(case)
        return failure(
            f"cannot listen on {host} port {number} ({error.strerror})",
            f"Choose an address of this machine with --host, or {_OTHER_PORT}.",
        )
    if number == 0:
        return ok("a free one is picked at the start")
    if case.has_gateway:
        return warning(
            f"nothing listens on {host} port {number}, though a gateway runs",
            "Wait until it has started.",
        )
    return ok(f"{host} port {number} is free")


def _listener(case: Case, address: Address | None = None) -> Finding:
    """Look at what listens where it was set, or where the gateway of the data folder says."""
    url = address.url if address else None
    with httpx2.Client(**client_options(case.settings, url), timeout=_ASK_SECONDS) as http:
        where = f"{http.base_url.host} port {http.base_url.port}"
        try:
            if _is_gateway(http, address):
                return _answers(http, case)
        except _NO_GATEWAY:
            pass  # it has the same answer to /healthz, and others to the rest
        except httpx2.HTTPError as error:
            return failure(
                f"what listens on {where} gives no answer ({error})",
                f"If it is a gateway, restart it. Otherwise end it, or {_OTHER_PORT}.",
            )
    return failure(
        f"something else listens on {where}",
        f"End it, or {_OTHER_PORT}.",
    )


def _is_gateway(http: httpx2.Client, address: Address | None) -> bool:
    try:
        health = http.get("/healthz")
        is_one = bool(health.json() == {"status": "ok"}) and "X-Request-Id" in health.headers
    except (httpx2.RemoteProtocolError, *_NO_GATEWAY):  # another protocol, or another program
        return False
    return is_one and (address is None or address.is_answered_in(health.headers))


def _answers(http: httpx2.Client, case: Case) -> Finding:
    url = str(http.base_url).rstrip("/")
    if not (case.is_shared or case.has_gateway):
        return failure(
            f"the gateway at {url} has another data folder than {case.settings.data_dir}",
            f"Set HMS_GATEWAY_DATA_DIR as it has it, or {_OTHER_PORT}.",
        )
    ready = http.get("/readyz")
    if ready.status_code != 200:
        reason = ready.json()["reason"]
        advice = _REASONS.get(reason, "Look into its log.")
        return failure(f"the gateway at {url} is not ready: {reason}", advice)
    tools = http.get("/memory/tools")
    if tools.status_code != 200:
        code = tools.json()["code"]
        return failure(
            f"the gateway at {url} refuses us: {code}",
            "Set HMS_GATEWAY_TOKEN as it has it, or restart it with this one.",
        )
    return ok(f"a gateway listens at {url}, is ready, and takes our requests")


def shared_engine(case: Case) -> Finding:
    """The shared engine answers and takes our token. Nothing is written, no store is opened."""
    url = case.settings.hms_url or ""
    try:
        version = anyio.run(_ask, url, case)
    except ToolFailed as refusal:
        return failure(
            f"the hms-mcp at {url} takes no namespace ({refusal})", "Start it with --namespace-arg."
        )
    except MemoryFault as fault:
        return failure(f"no session with the hms-mcp at {url}", str(fault))
    if not anyio.run(answers(url)):
        return failure(
            f"/health of the hms-mcp at {url} does not answer",
            "Let the gateway reach it: its own readiness depends on it.",
        )
    return ok(f"hms-mcp {version} at {url} takes our calls; nothing was written")


async def _ask(url: str, case: Case) -> str:
    """Its version, from the store that it has open anyway: each further one takes a place there."""
    limits = case.settings
    async with open_http(
        url,
        engine_token(case.environ),
        open_seconds=limits.open_seconds,
        call_seconds=limits.call_seconds,
    ) as session:
        own = await session("stats", {})
        await session("stats", {"namespace": own["namespace"]})
        return str(own["server_version"])
