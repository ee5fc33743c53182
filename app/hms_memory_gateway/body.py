"""Request bodies: read up to a limit, and parsed by hand so that each error has its own answer."""

import json
from collections.abc import AsyncIterable
from typing import Any, NoReturn

from .problems import BodyInvalid, BodyTooLarge


async def read_object(
    chunks: AsyncIterable[bytes], content_length: str | None, max_bytes: int
) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        chunks: the body as it arrives; no more of it is taken than the limit allows.
        content_length: what the head of the request announces, if it does.
        max_bytes: the largest body.

    Raises:
        BodyTooLarge: the body is larger, or is announced to be.
        BodyInvalid: it is not JSON, or not an object.
    """
    too_large = BodyTooLarge(f"The body is larger than {max_bytes} bytes, the most this takes.")
    if content_length and content_length.isdecimal() and int(content_length[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return parse_object(bytes(body))


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8.

    Halves of surrogate pairs are let through: the field that holds one is named later.

    Raises:
        BodyInvalid: it is not that; the sentence says where it stops being JSON.
    """
    try:
        parsed = json.loads(body.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BodyInvalid(
            f"The body is not JSON: see line {error.lineno}, column {error.colno}."
        ) from None
    except (ValueError, RecursionError):
        raise BodyInvalid("The body is not JSON that can be read.") from None
    if not isinstance(parsed, dict):
        raise BodyInvalid("The body has to be a JSON object.")
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
