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


def client_options(settings: Settings) -> ClientOptions:
    """The address of the gateway that has these settings, and their token."""
    token = settings.token.get_secret_value() if settings.token else None
    return {
        "base_url": f"http://{_reachable(settings.host)}:{settings.port}",
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "trust_env": False,  # no proxy of the environment's leads back to this machine
    }


def _reachable(host: str) -> str:
    """Where one that listens on a host can be asked; on all addresses, it listens on loopback."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "::1" if address.version == 6 else "127.0.0.1"
    return bracketed(host)
