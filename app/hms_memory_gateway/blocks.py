"""What the routes do with the blocks of Claude's messages.

A refusal is an answer for Claude; everything else that goes wrong is the boundary's.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from hms_memory_tool.commands import MEMORY_TOOL, RECALL_TOOL, parse_command, parse_recall
from hms_memory_tool.errors import ConnectionLost, NotConnected, Refused, Unavailable
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.recall import Recalled, render

from .pool import Pool
from .problems import BodyInvalid, told

T = TypeVar("T")


async def execute(pool: Pool, namespace: str, given: object) -> dict[str, Any]:
    """Run the `input` of a `memory` block; what is wrong with it never reaches an engine."""
    try:
        command = parse_command(given)
        return _answer(await _do(pool, namespace, lambda files: files.execute(command)))
    except Refused as refusal:
        return _answer(str(refusal), is_error=True)


async def recall(pool: Pool, namespace: str, given: object) -> dict[str, Any]:
    """Run the `input` of a `memory_recall` block."""
    try:
        request = parse_recall(given)
        results = await _do(pool, namespace, lambda files: files.recall(request))
    except Refused as refusal:
        return {**_answer(str(refusal), is_error=True), "results": []}
    return {**_answer(render(results)), "results": [_result(one) for one in results]}


async def tool_results(pool: Pool, namespace: str, content: Sequence[Any]) -> list[dict[str, Any]]:
    """Run the blocks of an assistant's message that are ours, in order, and answer each.

    Raises:
        BodyInvalid: a block is no block, or one of ours has no id; nothing was run.
        Unavailable: the first block got no answer, and nothing was run. After that, an answer
            that does not come is one with `is_error`, so that those which came are not lost.
    """
    uses = [use for index, block in enumerate(content) if (use := _ours(index, block))]
    results: list[dict[str, Any]] = []
    fault: Unavailable | None = None
    for use in uses:
        if fault:
            answer = _answer("Not run, since the memory gave no answer before.", is_error=True)
        else:
            try:
                answer = await _RUN[use["name"]](pool, namespace, use.get("input"))
            except Unavailable as unavailable:
                if not results:
                    raise
                fault = unavailable
                answer = _answer(told(fault), is_error=True)
        results.append(
            {
                "type": "tool_result",
                "tool_use_id": use["id"],
                "content": answer["content"],
                "is_error": answer["is_error"],
            }
        )
    return results


async def _do(pool: Pool, namespace: str, work: Callable[[MemoryFiles], Awaitable[T]]) -> T:
    """Use the files of a namespace; once more if their engine had gone.

    An engine that died while nobody looked costs no caller anything: with these two faults
    nothing was written, so doing all of it again with the next engine is safe.
    """
    try:
        async with pool.lease(namespace) as files:
            return await work(files)
    except (NotConnected, ConnectionLost):
        async with pool.lease(namespace) as files:
            return await work(files)


_RUN = {MEMORY_TOOL["name"]: execute, RECALL_TOOL["name"]: recall}


def _ours(index: int, block: object) -> Mapping[str, Any] | None:
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise BodyInvalid(f"`content[{index}]` has to be a block: an object with a `type`.")
    if block["type"] != "tool_use" or block.get("name") not in _RUN:
        return None
    if not isinstance(block.get("id"), str) or not block["id"]:
        raise BodyInvalid(f"`content[{index}]` has to have the `id` of its tool_use.")
    return block


def _answer(content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": content, "is_error": is_error}


def _result(one: Recalled) -> dict[str, Any]:
    result = {
        "path": one.path,
        "score": one.score,
        "excerpt": one.excerpt,
        "start_line": one.start_line,
        "end_line": one.end_line,
        "lexical_score": one.lexical_score,
    }
    if one.semantic_score is not None:
        result["semantic_score"] = one.semantic_score
    return result
