"""Ends the operator's process in order: its signals, and work that gives way to them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable


def take_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT stop the operator."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def first_of(work: Awaitable[object], other: Awaitable[object]) -> bool:
    """Run two awaitables until one is done. Returns: whether the first one is done."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()
    return tasks[0] in done
