"""From the value of `X-Memory-Namespace` to the engine's name of the store. Pure and injective.

The engine's names are `[a-z0-9_-]{1,64}`. Such a value is used as it is; any other is given a
readable slug and a hash of its exact bytes. Nothing is folded or cut without the hash, so no two
values ever share a store, on a file system that ignores case included.
"""

import hashlib
import re

from .problems import NamespaceInvalid, NamespaceMissing

MAX_BYTES = 256
_MAX_SLUG = 30

_ENGINE_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_RESERVED = re.compile(r"[a-z0-9_-]{0,30}--[0-9a-f]{32}")
_PRINTABLE = re.compile(rb"[\x20-\x7e]+")


def store_name(values: list[bytes], default: str | None) -> str:
    """The store for a request.

    Args:
        values: every value of the header, as it came.
        default: the operator's name for requests without the header, if there is one.

    Raises:
        NamespaceMissing: there is no header and no default.
        NamespaceInvalid: the header is empty, repeated, over 256 bytes, not printable ASCII, or
            of the form that is reserved for mapped names.
    """
    if not values:
        if default is None:
            raise NamespaceMissing
        return mapped(default)
    if len(values) > 1:
        raise NamespaceInvalid("The X-Memory-Namespace header was sent more than once.")
    # White space around a value belongs to HTTP, not to the value (RFC 9110, 5.5).
    value = values[0].strip(b" \t")
    if not value:
        raise NamespaceInvalid("The X-Memory-Namespace header is empty.")
    if len(value) > MAX_BYTES:
        raise NamespaceInvalid(
            f"The X-Memory-Namespace header is {len(value)} bytes; the limit is {MAX_BYTES}."
        )
    if not _PRINTABLE.fullmatch(value):
        raise NamespaceInvalid("The X-Memory-Namespace header has to be printable ASCII.")
    return mapped(value.decode("ascii"))


def mapped(value: str) -> str:
    """The engine's name for a namespace of printable ASCII.

    Raises:
        NamespaceInvalid: the value has the form of a mapped name, and would be another's store.
    """
    if _RESERVED.fullmatch(value):
        raise NamespaceInvalid(
            "A namespace that ends in `--` and 32 hexadecimal digits is reserved. "
            "Send the original value, not the name of its store."
        )
    if _ENGINE_NAME.fullmatch(value):
        return value
    slug = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:_MAX_SLUG]
    return f"{slug}--{hashlib.sha256(value.encode()).hexdigest()[:32]}"


def named(value: str) -> str:
    """The store that an operator means: by the namespace, or by the store's own name.

    Raises:
        NamespaceInvalid: it can be neither.
    """
    if _RESERVED.fullmatch(value):
        return value
    try:
        return store_name([value.encode("ascii")], None)
    except UnicodeEncodeError:
        raise NamespaceInvalid("A namespace has to be printable ASCII.") from None


def is_store_name(name: str) -> bool:
    """Whether the engine can have a store of that name."""
    return _ENGINE_NAME.fullmatch(name) is not None


def for_log(store: str) -> str:
    """What stands for a store in a log: the operator can tell stores apart, not whose they are."""
    return hashlib.sha256(store.encode()).hexdigest()[:12]
