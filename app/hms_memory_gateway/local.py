"""How a command on the gateway's machine calls the gateway."""

import ipaddress
from contextlib import suppress
from typing import TypedDict

from .settings import Settings, bracketed


class ClientOptions(TypedDict):
    """Options of an `httpx2` client."""

    base_url: str
    headers: dict[str, str]
    trust_env: bool


def client_options(settings: Settings, url: str | None = None) -> ClientOptions:
    """The address of a gateway, the one that has these settings unless a URL is given, and the
    token of the settings.
    """
    token = settings.token.get_secret_value() if settings.token else None
    return {
        "base_url": url or client_url(settings.host, settings.port),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "trust_env": False,  # no proxy of the environment's leads back to this machine
    }


def client_url(host: str, port: int) -> str:
    """Where one that listens on a host can be asked; on all addresses, it listens on loopback."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://{bracketed(host)}:{port}"
