"""Who may call: the token, and the pages that a browser may call from.

All of it is decided from the head of a request, before a byte of the body is read. Keys for many
callers will have their room here.
"""

import hmac
from collections.abc import Mapping

from .problems import CallerFault, HostRefused, OriginRefused, Unauthorized
from .settings import LOOPBACK_HOSTS, Settings, same_host

# Probes come from outside, by address and without a token; they reveal nothing.
OPEN_ROUTES = frozenset({"/healthz", "/readyz"})


class Access:
    """The rules of one gateway.

    Args:
        settings: `token`, `host` and `allowed_hosts`.
    """

    def __init__(self, settings: Settings) -> None:
        self._token = settings.token.get_secret_value().encode() if settings.token else None
        listened = same_host(settings.url_host)
        self._hosts = frozenset((*LOOPBACK_HOSTS, listened, *settings.allowed_hosts))

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Let a request pass, or say why not.

        Args:
            path: the path of the URL.
            headers: by lower-case name.

        Raises:
            HostRefused, OriginRefused, Unauthorized: it may not pass.
        """
        if path not in OPEN_ROUTES and (fault := self._objection(headers)):
            raise fault

    def _objection(self, headers: Mapping[bytes, bytes]) -> CallerFault | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if "*" not in self._hosts and same_host(_without_port(host)) not in self._hosts:
            return HostRefused()
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            return OriginRefused()
        if self._token is not None and not self._has_token(headers):
            return Unauthorized()
        return None

    def _has_token(self, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self._token or b""
        )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
