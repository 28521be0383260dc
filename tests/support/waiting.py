"""Waiting for conditions, with a deadline; nothing in the tests sleeps for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.01
_ASK_AGAIN_SECONDS = 0.1


def eventually(
    condition: Callable[[], T], *, within_seconds: float = 30, describe: Callable[[], str] = str
) -> T:
    """Wait until a condition holds and return what it returned.

    Args:
        condition: Holds when it returns something true.
        within_seconds: Limit of the wait.
        describe: What to add to the failure, e.g. the tail of a log.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {describe()}")
        time.sleep(_POLL_SECONDS)


async def eventually_async(
    condition: Callable[[], Awaitable[T]],
    *,
    within_seconds: float = 30,
    describe: Callable[[], str] = str,
) -> T:
    """The same for conditions whose check is expensive."""
    deadline = time.monotonic() + within_seconds
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {describe()}")
        await asyncio.sleep(_ASK_AGAIN_SECONDS)


async def soon(condition: Callable[[], object], *, within_seconds: float = 20) -> None:
    """Let other tasks run until a condition holds."""
    async with asyncio.timeout(within_seconds):
        while not condition():  # noqa: ASYNC110 - conditions of any kind; nothing to signal them
            await asyncio.sleep(0.0005)
