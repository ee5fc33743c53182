"""The store behind the commands: its protocol, and the store over hms-mcp.

The only file that knows the engine's tools and their JSON. Each method is one tool call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .errors import (
    AlreadyExists,
    ConnectionLost,
    EngineFault,
    NotFound,
    OutcomeUnknown,
    Refused,
    TimedOut,
    Unavailable,
    VersionConflict,
)
from .paths import ROOT, is_under

TAG = "memory-file"
T = TypeVar("T")

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""Call a tool of the engine: its name and arguments in, `structuredContent` out.

Raises `ToolFailed` for a result with `isError`; `ConnectionLost`, `TimedOut` or `EngineFault` when
there is no result; `NotConnected` when the call was not even sent.
"""


class ToolFailed(Exception):
    """A tool call of the engine ended in `isError`; `code` is one of the engine's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Document:
    """A memory as the engine keeps it; what another client set on it is kept by every edit."""

    key: str
    text: str
    version: str = ""
    title: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a listing: the key, its text's size in bytes, version, and time of last change.

    The time is that of the engine's clock, in milliseconds since 1970.
    """

    key: str
    size: int
    version: str
    updated_at: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a listing in key order; `cursor` is None on the last."""

    items: Sequence[T]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a query found. `score` is relative to the best hit, 0 to 1."""

    key: str
    text: str
    score: float
    lexical_score: float
    semantic_score: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one text may hold and one listing may return."""

    max_text_bytes: int
    max_page: int
    max_recalled: int
    max_metadata_bytes: int = 16_384


class Store(Protocol):
    """One namespace of a store of texts."""

    async def limits(self) -> Limits:
        """The limits that the engine reports."""

    async def get(self, key: str) -> Document:
        """Read one document. Raises `NotFound`."""

    async def create(self, document: Document) -> str:
        """Write a key that does not exist, return its version. Raises `AlreadyExists`."""

    async def replace(self, document: Document, text: str) -> str:
        """Change the text alone, if nobody did since it was read. Raises `VersionConflict`."""

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete what exists of these keys (at most 1,000), return how many that were."""

    async def entries(self, prefix: str, cursor: str | None, limit: int) -> Page[Entry]:
        """List what begins with `prefix`, in key order, from after `cursor`."""

    async def documents(self, prefix: str, cursor: str | None, limit: int) -> Page[Document]:
        """Like `entries`, whole: at `limit` texts of 32 KiB a page is large."""

    async def recall(self, query: str, k: int) -> list[Hit]:
        """The `k` memory files most relevant to `query`, best first."""


class HmsStore:
    """A `Store` in one namespace of an hms-mcp.

    Args:
        call: calls a tool of the engine.
        namespace: the engine's name of the store. Answers that carry a namespace must carry
            this one, so a mix-up of connections cannot go unseen; None takes the engine's own.
        is_shared: send the namespace with every call, for a server with `--namespace-arg`.
    """

    def __init__(self, call: Call, namespace: str | None, *, is_shared: bool = False) -> None:
        self._call = call
        self._namespace = namespace
        self._selection = {"namespace": namespace} if is_shared else {}

    async def limits(self) -> Limits:
        answer = self._own(await self._ask("stats", {}))
        limits = answer["limits"]
        return Limits(
            limits["max_text_bytes"],
            limits["max_page"],
            limits["max_top_k"],
            limits["max_metadata_bytes"],
        )

    async def get(self, key: str) -> Document:
        return _document((await self._ask("get", {"id": key}))["memory"])

    async def create(self, document: Document) -> str:
        return await self._remember(_tagged(document), {"create_only": True})

    async def replace(self, document: Document, text: str) -> str:
        ours = replace(_tagged(document), text=text)
        return await self._remember(ours, {"if_version": document.version})

    async def put(self, document: Document) -> None:
        """Write a document just as it is, whatever its key holds."""
        await self._remember(document, {})

    async def delete(self, keys: Sequence[str]) -> int:
        deleted: int = (await self._write("forget", {"ids": list(keys)}))["deleted"]
        return deleted

    async def entries(self, prefix: str, cursor: str | None, limit: int) -> Page[Entry]:
        memories, following = await self._list(prefix, cursor, limit, full=False)
        entries = [
            Entry(one["id"], one["bytes"], one["version"], one["updated_at"]) for one in memories
        ]
        return Page(entries, following)

    async def documents(self, prefix: str, cursor: str | None, limit: int) -> Page[Document]:
        memories, following = await self._list(prefix, cursor, limit, full=True)
        return Page([_document(one) for one in memories], following)

    async def recall(self, query: str, k: int) -> list[Hit]:
        answer = await self._ask("recall", {"query": query, "k": k, "tags": [TAG]})
        return [
            Hit(
                hit["memory"]["id"],
                hit["memory"]["text"],
                hit["score"],
                hit["lexical_score"],
                hit.get("semantic_score"),
            )
            for hit in answer["results"]
        ]

    async def _list(
        self, prefix: str, cursor: str | None, limit: int, *, full: bool
    ) -> tuple[list[Mapping[str, Any]], str | None]:
        arguments: dict[str, Any] = {"prefix": prefix, "limit": limit, "full": full}
        if cursor is not None:
            arguments["cursor"] = cursor
        answer = await self._ask("list", arguments)
        return answer["memories"], answer["next_cursor"]

    async def _remember(self, document: Document, condition: dict[str, Any]) -> str:
        arguments: dict[str, Any] = {
            "id": document.key,
            "text": document.text,
            "allow_empty": True,
            "tags": list(document.tags),
            **condition,
        }
        # `remember` drops whatever is not sent again.
        if document.title is not None:
            arguments["title"] = document.title
        if document.metadata:
            arguments["metadata"] = dict(document.metadata)
        version: str = self._own(await self._write("remember", arguments))["version"]
        return version

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._call(tool, {**arguments, **self._selection})
        except ToolFailed as failure:
            advice = _ADVICE.get(failure.code, "")
            raise _FAULTS.get(failure.code, EngineFault)(f"{failure}{advice}") from failure

    async def _write(self, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._ask(tool, arguments)
        except (ConnectionLost, TimedOut, EngineFault) as fault:
            failure = fault.__cause__
            if isinstance(failure, ToolFailed) and failure.code != "internal":
                raise  # it was refused before anything was written
            # A failure in mid-write (a full disk) can leave the write behind.
            raise OutcomeUnknown(f"{tool}: {fault}") from fault

    def _own(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._namespace not in (None, answer["namespace"]):
            raise EngineFault("the engine answered for another namespace than it was asked for")
        return answer


def _tagged(document: Document) -> Document:
    """With the tag that recall is asked for, if it is a memory file."""
    if not is_under(document.key, ROOT):
        return document
    return replace(document, tags=tuple(sorted({*document.tags, TAG})))


def _document(memory: Mapping[str, Any]) -> Document:
    return Document(
        key=memory["id"],
        text=memory["text"],
        version=memory["version"],
        title=memory.get("title"),
        tags=tuple(memory["tags"]),
        metadata=memory["metadata"],
    )


# For the operator, in the log.
_ADVICE = {
    "too_many_stores": ". A shared hms-mcp never closes a store: restart it, with a higher "
    "--max-stores (1,024 at most), or let the gateway start engines of its own.",
    "store_locked": ". Another process has the store open: only one can.",
}
_FAULTS: dict[str, type[NotFound | AlreadyExists | VersionConflict | Refused | Unavailable]] = {
    "not_found": NotFound,
    "already_exists": AlreadyExists,
    "version_conflict": VersionConflict,
    # Our own check comes first, so this is a limit that `stats` does not report.
    "too_large": Refused,
    "store_locked": Unavailable,
    "store_unavailable": Unavailable,
    "too_many_stores": Unavailable,
}
