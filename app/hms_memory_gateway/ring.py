"""Which of many gateways owns a namespace. Pure: whoever knows the gateways' names knows it.

A value of `X-Memory-Namespace` falls into one of `BUCKETS` by a hash that HAProxy has too, and each
bucket belongs to the gateway that ranks first for it (rendezvous hashing). So a gateway that is
added takes its share from all others, and nothing else changes hands. Health plays no part: a
gateway that is down keeps its namespaces, since another would open new, empty stores for them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import shake_128
from ipaddress import IPv6Address
from struct import unpack
from zlib import crc32

# Enough that hundreds of gateways have even shares; to change it is to move every namespace.
BUCKETS = 16_384
# HAProxy's name for the backend of requests that are about no namespace; no gateway's name.
ANY = "_any"

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
# What HAProxy takes: a name may have "_", or a dot at its end, but no empty part.
_ADDRESS = re.compile(
    r"(([\w-]{1,63}\.)*[\w-]{1,63}\.?|\[(?P<ipv6>[0-9a-fA-F:.]+)\]):(?P<port>[0-9]{1,5})", re.ASCII
)


class RingInvalid(ValueError):
    """The gateways cannot be a ring; the text says which one is wrong."""


@dataclass(frozen=True, slots=True)
class Move:
    """A namespace that changes hands."""

    namespace: str
    before: str
    after: str


def bucket(value: bytes) -> int:
    """The bucket of a header's value; white space around it is not part of it (RFC 9110, 5.5)."""
    return crc32(value.strip(b" \t")) % BUCKETS


def owners(gateways: Collection[str]) -> list[str]:
    """The gateway that owns each bucket.

    Raises:
        RingInvalid: there is no gateway, or one is named twice or not as a host is.
    """
    if not gateways:
        raise RingInvalid("A ring has at least one gateway.")
    for name in gateways:
        if not _NAME.fullmatch(name):
            raise RingInvalid(f"{name!r} cannot be a gateway's name: letters, digits, '-' and '.'.")
    if len(set(gateways)) < len(gateways):
        raise RingInvalid("A gateway is named twice.")
    names = sorted(gateways)
    return [names[ranks.index(max(ranks))] for ranks in zip(*map(_ranks, names), strict=True)]


class Change:
    """One set of gateways that becomes another.

    Raises:
        RingInvalid: as for `owners`.
    """

    def __init__(self, before: Collection[str], after: Collection[str]) -> None:
        self._before = owners(before)
        self._after = owners(after)

    def move(self, namespace: str) -> Move | None:
        """How a namespace changes hands, if it does."""
        number = bucket(namespace.encode())
        before, after = self._before[number], self._after[number]
        return Move(namespace, before, after) if before != after else None


def bucket_map(gateways: Collection[str]) -> str:
    """The owners as HAProxy's `map` reads them, one bucket a line.

    Raises:
        RingInvalid: as for `owners`.
    """
    return "".join(f"{number} {name}\n" for number, name in enumerate(owners(gateways)))


def backends(addresses: Mapping[str, str]) -> str:
    """HAProxy's backends: one for each gateway, and one of all for what is about no namespace.

    Args:
        addresses: host and port of each gateway, by its name.

    Raises:
        RingInvalid: an address is not `host:port`.
    """
    for name, address in addresses.items():
        if not _is_address(address):
            raise RingInvalid(f"The address of {name} has to be HOST:PORT, and is {address!r}.")
    lines = [
        "# Written by `hms-memory-gateway ring write`, with buckets.map: they belong together."
    ]
    for name, address in addresses.items():
        lines += ["", f"backend {name}", f"    server {name} {address} check"]
    lines += ["", f"backend {ANY}"]
    lines += [f"    server {name} {one} track {name}/{name}" for name, one in addresses.items()]
    return "\n".join(lines) + "\n"


def _is_address(text: str) -> bool:
    parts = _ADDRESS.fullmatch(text)
    if parts is None or not 1 <= int(parts["port"]) <= 65_535:
        return False
    try:
        IPv6Address(parts["ipv6"] or "::")
    except ValueError:
        return False
    return True


def _ranks(gateway: str) -> tuple[int, ...]:
    """How a gateway ranks for each bucket: numbers that its name alone decides."""
    return unpack(f">{BUCKETS}Q", shake_128(gateway.encode()).digest(8 * BUCKETS))
