"""The OpenAPI side of the routes: schemas, and an example for every answer and every error.

The request and answer examples of a route share their names, and can be sent one after the other
to an empty namespace; a test does that.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hms_memory_tool.commands import COMMANDS, MEMORY_TOOL, RECALL_TOOL, Recall
from hms_memory_tool.errors import KeyReused, MemoryFault, Unavailable

from .problems import (
    STATUS,
    BodyInvalid,
    BodyTooLarge,
    CompactionFailed,
    CompactionGaveWay,
    CompactionUnsupported,
    HostRefused,
    InternalFault,
    KeyInvalid,
    NamespaceInvalid,
    NamespaceMissing,
    NamespaceNotFound,
    NoRoom,
    NotForgotten,
    OriginRefused,
    Unauthorized,
    problem,
)

Json = dict[str, Any]

DESCRIPTION = """\
Claude's memory tool (`memory_20250818`), served from Holographic Memory stores: one store for
each namespace, named by the header `X-Memory-Namespace`.

What Claude can mend is an answer with `is_error: true` and a sentence for Claude. Everything else
is a problem document (RFC 9457) with a stable `code`.
"""

_ACCESS = (Unauthorized, HostRefused, OriginRefused, InternalFault)
_BODY = (NamespaceMissing, NamespaceInvalid, BodyInvalid, BodyTooLarge)
_KEYED = (KeyInvalid, KeyReused)
_COMPACTION = (CompactionGaveWay, NoRoom, CompactionFailed)
_STORE = tuple(
    fault for fault in STATUS if issubclass(fault, Unavailable) and fault not in _COMPACTION
)

_NAMESPACE: Json = {
    "name": "X-Memory-Namespace",
    "in": "header",
    "required": True,
    "description": "Whose memory: any printable ASCII up to 256 bytes. Required, unless the "
    "operator has set a default namespace.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    "example": "user-42",
}
_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A new one for each command, and the same for each time that it is sent: then "
    "it is done once. Kept for some minutes, and with what it changed beyond a restart.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "example": "0b8f0c1e-5f0a-4f5e-9f43-6f4c1f1f2a10",
}
_PROBLEM: Json = {
    "title": "Problem",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was wrong, and what to do."},
        "code": {"type": "string", "description": "Stable name of the fault."},
        "request_id": {"type": "string", "description": "Finds the request in the log."},
    },
    "required": ["type", "title", "status", "detail", "code", "request_id"],
}
_CONTENT: Json = {"type": "string", "description": "For the `tool_result`, as it is."}
_IS_ERROR: Json = {"type": "boolean", "description": "For the `tool_result`, as it is."}
_ANSWER = {
    "title": "Answer",
    "type": "object",
    "properties": {"content": _CONTENT, "is_error": _IS_ERROR},
    "required": ["content", "is_error"],
}
_RESULT: Json = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "score": {"type": "number", "description": "Relative to the best file, 0 to 1."},
        "excerpt": {"type": "string", "description": "The lines that match."},
        "start_line": {"type": "integer"},
        "end_line": {"type": "integer"},
        "lexical_score": {"type": "number"},
        "semantic_score": {"type": "number", "description": "With an embedding model alone."},
    },
    "required": ["path", "score", "excerpt", "start_line", "end_line", "lexical_score"],
}
_BLOCKS: Json = {"type": "array", "items": {"type": "object"}}


def _object(title: str, properties: Json) -> Json:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def _route(
    schema: Json,
    answers: Mapping[str, Json],
    faults: Iterable[type[MemoryFault]],
    request: Json | None = None,
    requests: Mapping[str, Json] | None = None,
    headers: Sequence[Json] = (_NAMESPACE,),
) -> Json:
    """The keyword arguments of a route's decorator."""
    extra: Json = {}
    if request is not None:
        body = {"schema": request, "examples": _examples(requests or {})}
        extra["parameters"] = list(headers)
        extra["requestBody"] = {"required": True, "content": {"application/json": body}}
    content = {"application/json": {"schema": schema, "examples": _examples(answers)}}
    return {
        "responses": {
            200: {"description": "The answer", "content": content},
            **_problems(faults),
        },
        "openapi_extra": extra,
    }


def _examples(values: Mapping[str, Json]) -> Json:
    return {name: {"value": value} for name, value in values.items()}


def _problems(faults: Iterable[type[MemoryFault]]) -> dict[int | str, Json]:
    by_status: dict[int, Json] = defaultdict(dict)
    for fault in faults:
        by_status[STATUS[fault].value][fault.code] = problem(fault(), "5f0c3e2a9b7d4c61")
    return {
        status: {
            "description": " or ".join(f"`{code}`" for code in examples),
            "content": {
                "application/problem+json": {"schema": _PROBLEM, "examples": _examples(examples)}
            },
        }
        for status, examples in by_status.items()
    }


_HEAD = "Here're the files and directories up to 2 levels deep in /memories, "
COMMAND = _route(
    _ANSWER,
    {
        "look": {
            "content": f"{_HEAD}excluding hidden items and node_modules:\n0B\t/memories",
            "is_error": False,
        },
        "note": {
            "content": "File created successfully at: /memories/customers/acme.md",
            "is_error": False,
        },
        "read": {
            "content": "Here's the content of /memories/customers/acme.md with line numbers:\n"
            "     1\t# Acme Corp\n     2\tPrefers email follow-ups.",
            "is_error": False,
        },
        "change": {
            "content": "The memory file has been edited. Here is the snippet showing the change "
            "(with line numbers):\n     1\t# Acme Corp\n     2\tPrefers phone follow-ups.",
            "is_error": False,
        },
        "add": {
            "content": "The file /memories/customers/acme.md has been edited.",
            "is_error": False,
        },
        "move": {
            "content": "Successfully renamed /memories/customers to /memories/clients",
            "is_error": False,
        },
        "forget": {"content": "Successfully deleted /memories/clients", "is_error": False},
        "mistake": {
            "content": "The path /memories/clients does not exist. Please provide a valid path.",
            "is_error": True,
        },
    },
    (*_ACCESS, *_BODY, *_KEYED, *_STORE),
    {
        "title": "Command",
        "oneOf": [model.model_json_schema() for model in COMMANDS],
        "discriminator": {"propertyName": "command"},
    },
    {
        "look": {"command": "view", "path": "/memories"},
        "note": {
            "command": "create",
            "path": "/memories/customers/acme.md",
            "file_text": "# Acme Corp\nPrefers email follow-ups.\n",
        },
        "read": {"command": "view", "path": "/memories/customers/acme.md"},
        "change": {
            "command": "str_replace",
            "path": "/memories/customers/acme.md",
            "old_str": "email",
            "new_str": "phone",
        },
        "add": {
            "command": "insert",
            "path": "/memories/customers/acme.md",
            "insert_line": 2,
            "insert_text": "Contact: Ada.",
        },
        "move": {
            "command": "rename",
            "old_path": "/memories/customers",
            "new_path": "/memories/clients",
        },
        "forget": {"command": "delete", "path": "/memories/clients"},
        "mistake": {"command": "view", "path": "/memories/clients"},
    },
    (_NAMESPACE, _KEY),
)

RECALL = _route(
    _object(
        "RecallAnswer",
        {
            "content": _CONTENT,
            "is_error": _IS_ERROR,
            "results": {"type": "array", "items": _RESULT},
        },
    ),
    {
        "nothing": {
            "content": "No memory file matches. Other words may find one, "
            "or view /memories to see which files there are.",
            "is_error": False,
            "results": [],
        },
        "mistake": {
            "content": "`query` should not be blank: say what to look for.",
            "is_error": True,
            "results": [],
        },
    },
    (*_ACCESS, *_BODY, *_STORE),
    Recall.model_json_schema(),
    {
        "nothing": {"query": "How does Acme want to be contacted?"},
        "mistake": {"query": " "},
    },
)

TOOL_RESULTS = _route(
    _object("ToolResults", {"content": _BLOCKS}),
    {
        "turn": {
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_01A",
                    "content": f"{_HEAD}excluding hidden items and node_modules:\n0B\t/memories",
                    "is_error": False,
                }
            ]
        }
    },
    (*_ACCESS, *_BODY, KeyReused, *_STORE),
    _object("AssistantContent", {"content": _BLOCKS}),
    {
        "turn": {
            "content": [
                {"type": "text", "text": "I'll look at my memory first."},
                {
                    "type": "tool_use",
                    "id": "toolu_01A",
                    "name": "memory",
                    "input": {"command": "view", "path": "/memories"},
                },
            ]
        }
    },
)

TOOLS = _route(
    _object("Tools", {"tools": _BLOCKS}),
    {"tools": {"tools": [MEMORY_TOOL, RECALL_TOOL]}},
    _ACCESS,
)

_INTEGER: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}
COMPACT = _route(
    _object(
        "Compacted",
        {
            "memories": _INTEGER,
            "before_bytes": _INTEGER,
            "after_bytes": _INTEGER,
            "seconds": _NUMBER,
            "wait_seconds": _NUMBER,
        },
    ),
    {
        "compacted": {
            "memories": 50,
            "before_bytes": 57_671_680,
            "after_bytes": 237_568,
            "seconds": 0.26,
            "wait_seconds": 0.003,
        }
    },
    (
        *_ACCESS,
        NamespaceInvalid,
        NamespaceNotFound,
        CompactionUnsupported,
        *_COMPACTION,
        *(fault for fault in _STORE if fault is not NotForgotten),
    ),
)

COMPACT["openapi_extra"]["parameters"] = [
    {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "The value of `X-Memory-Namespace`, percent-encoded, or the store's name.",
        "schema": {"type": "string", "minLength": 1},
        "example": "user-42",
    }
]

_STATUS_SCHEMA = _object("Status", {"status": {"type": "string"}})
HEALTHZ = _route(_STATUS_SCHEMA, {"ok": {"status": "ok"}}, (InternalFault,))
READYZ = _route(_STATUS_SCHEMA, {"ready": {"status": "ready"}}, (InternalFault,))
READYZ["responses"][503] = {
    "description": "`draining`, `engine_missing`, `data_dir_unwritable` or `engine_unreachable`",
    "content": {
        "application/json": {
            "schema": _object(
                "NotReady", {"status": {"type": "string"}, "reason": {"type": "string"}}
            ),
            "examples": _examples({"draining": {"status": "not_ready", "reason": "draining"}}),
        }
    },
}
METRICS = _route({"type": "string"}, {}, _ACCESS)
METRICS["responses"][200]["content"] = {
    "text/plain": {
        "schema": {"type": "string"},
        "examples": {"ready": {"value": "# TYPE hms_gateway_ready gauge\nhms_gateway_ready 1.0\n"}},
    }
}
