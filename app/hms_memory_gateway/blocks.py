"""What the routes do with the blocks of Claude's messages.

A refusal is an answer for Claude; everything else that goes wrong is the boundary's.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from hms_memory_tool.commands import (
    MEMORY_TOOL,
    RECALL_TOOL,
    Command,
    View,
    parse_command,
    parse_recall,
)
from hms_memory_tool.errors import (
    ConnectionLost,
    NotConnected,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.keys import Attempt, Key
from hms_memory_tool.results import Recalled, render

from .idempotency import Answer, Answers
from .metrics import RECALL
from .pool import Pool
from .problems import BodyInvalid, NotForgotten
from .telemetry import Telemetry
from .upkeep import insist

T = TypeVar("T")
_TRIES = 3


class Blocks:
    """Runs blocks in the stores of a pool.

    Args:
        pool: the connections.
        answers: what has been answered under idempotency keys.
        telemetry: measures and traces each command.
        forgets_at_once: whether what a command replaces is to be gone before it is answered.
    """

    def __init__(
        self,
        pool: Pool,
        answers: Answers,
        telemetry: Telemetry,
        *,
        forgets_at_once: bool = False,
    ) -> None:
        self._pool = pool
        self._answers = answers
        self._telemetry = telemetry
        self._forgets_at_once = forgets_at_once

    async def execute(self, namespace: str, given: object, key: str | None = None) -> Answer:
        """Run the `input` of a `memory` block; what is wrong with it never reaches an engine.

        Args:
            namespace: the store's name.
            given: the input, as Claude wrote it.
            key: the caller's idempotency key; under the same key it is run once.

        Raises:
            KeyReused: the key came with another input before.
            NotForgotten: it was done, and what it replaced is still on the disk.
            Unavailable: the store gave no answer.
        """
        try:
            command = parse_command(given)
        except Refused as refusal:
            self._telemetry.metrics.refused()
            return _answer(str(refusal), is_error=True)
        if key is None:
            return await self._run(namespace, command, Attempt())
        name = Key.of(key, cast("Mapping[str, Any]", given))
        return await self._answers.once(
            namespace, name, lambda: self._run(namespace, command, Attempt(name))
        )

    async def _run(self, namespace: str, command: Command, attempt: Attempt) -> Answer:
        """Execute a command, a refusal being an answer, too."""
        try:
            with self._telemetry.command(command.command, namespace):
                done = await self._do(namespace, lambda files: files.execute(command, attempt))
        except Refused as refusal:
            return _answer(str(refusal), is_error=True)
        if self._forgets_at_once and not isinstance(command, View):
            await self._forget(namespace)
        return _answer(done)

    async def _forget(self, namespace: str) -> None:
        try:
            await insist(lambda: self._pool.forget(namespace))
        except Unavailable as fault:
            raise NotForgotten(str(fault)) from fault

    async def recall(self, namespace: str, given: object) -> Answer:
        """Run the `input` of a `memory_recall` block.

        Raises:
            Unavailable: the store gave no answer.
        """
        try:
            with self._telemetry.command(RECALL, namespace) as span:
                request = parse_recall(given)
                results = await self._do(namespace, lambda files: files.recall(request))
                span.found(len(results))
        except Refused as refusal:
            return {**_answer(str(refusal), is_error=True), "results": []}
        return {**_answer(render(results)), "results": [_result(one) for one in results]}

    async def tool_results(self, namespace: str, content: Sequence[Any]) -> list[Answer]:
        """Run the blocks of an assistant's message that are ours, in order, and answer each.

        The `id` of each block is its idempotency key, so the message can be sent again.

        Raises:
            BodyInvalid: a block is no block, or one of ours has no id; nothing was run.
            KeyReused: an id came with another input before.
            Unavailable: the store gave no answer to one of them.
        """
        uses = [use for index, block in enumerate(content) if (use := _ours(index, block))]
        if len({use["id"] for use in uses}) < len(uses):
            raise BodyInvalid("Two blocks in `content` have the same `id`.")
        return [await self._tool_result(namespace, use) for use in uses]

    async def _tool_result(self, namespace: str, use: Mapping[str, Any]) -> Answer:
        given = use.get("input")
        if use["name"] == RECALL_TOOL["name"]:
            answer = await self.recall(namespace, given)
        else:
            answer = await self.execute(namespace, given, use["id"])
        return {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": answer["content"],
            "is_error": answer["is_error"],
        }

    async def _do(self, namespace: str, work: Callable[[MemoryFiles], Awaitable[T]]) -> T:
        """Use the files of a namespace; again if their engine gave no answer.

        An attempt knows what it has done, so trying it once more settles whether a write without
        an answer happened. Only if nothing answers now is the outcome unknown to the caller.
        """
        unknown: OutcomeUnknown | None = None
        for tried in range(1, _TRIES + 1):
            if tried > 1:
                self._telemetry.metrics.retries.inc()
            try:
                async with self._pool.lease(namespace) as files:
                    return await work(files)
            except OutcomeUnknown as fault:
                unknown = fault
            except (NotConnected, ConnectionLost):
                if tried == _TRIES:
                    raise
            except Unavailable as fault:
                raise unknown or fault from fault
        raise unknown or Unavailable("no answer")


_NAMES = (MEMORY_TOOL["name"], RECALL_TOOL["name"])


def _ours(index: int, block: object) -> Mapping[str, Any] | None:
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise BodyInvalid(f"`content[{index}]` has to be a block: an object with a `type`.")
    if block["type"] != "tool_use" or block.get("name") not in _NAMES:
        return None
    if not isinstance(block.get("id"), str) or not block["id"].isprintable() or not block["id"]:
        raise BodyInvalid(f"`content[{index}]` has to have the `id` of its tool_use.")
    return block


def _answer(content: str, *, is_error: bool = False) -> Answer:
    return {"content": content, "is_error": is_error}


def _result(one: Recalled) -> Answer:
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
