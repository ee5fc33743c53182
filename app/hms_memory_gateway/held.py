"""A context that one task owns, and that another may close."""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Held(Generic[T]):
    """What a context gave, until it is released."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.release_asked = anyio.Event()
        self.left = anyio.Event()

    async def release(self) -> None:
        """Leave the context, and return when that is done."""
        self.release_asked.set()
        await self.left.wait()


async def hold(tasks: TaskGroup, context: AbstractAsyncContextManager[T]) -> Held[T]:
    """Enter a context in a task of its own, which holds it and leaves it.

    Raises:
        Exception: what entering it raised.
    """
    held: Held[T] = await tasks.start(_hold, context)
    return held


async def _hold(context: AbstractAsyncContextManager[T], *, task_status: TaskStatus[Any]) -> None:
    held: Held[T] | None = None
    try:
        async with context as value:
            held = Held(value)
            task_status.started(held)
            await held.release_asked.wait()
    except Exception as error:
        if held is None:
            raise
        logger.warning("failed in closing: %s", error)
    finally:
        if held is not None:
            held.left.set()
