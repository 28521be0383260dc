"""Keeps the parts of the process running. A part that fails is begun again alone, and is reported.

Each part serves all fleets of all tenants. If one that fails ended the process, whatever makes it fail would
stop the others, too, at every start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fleet_operator.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
WORKS_SECONDS = 60.0
"""A part that has run for this long works."""

Part = Callable[[], Coroutine[Any, Any, object]]
OnPart = Callable[[str, Exception | None], None]
"""Called with the name of a part that has failed, or works again (None)."""


async def keep_running(name: str, part: Part, on_part: OnPart) -> None:
    """Run a part until cancelled. It waits longer before each new beginning, until it works."""
    backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    while True:
        running = asyncio.create_task(part(), name=name)
        try:
            await asyncio.wait([running], timeout=WORKS_SECONDS)
            if not running.done():
                backoff.reset()
                on_part(name, None)
                await asyncio.wait([running])
            error = _end_of(running)
        finally:
            running.cancel()
            await asyncio.wait([running])
        delay = backoff.next_seconds()
        logger.error(
            "%s ended by itself, and is begun again in %.1f s", name, delay, exc_info=error
        )
        on_part(name, error)
        await asyncio.sleep(delay)


def _end_of(running: asyncio.Task[object]) -> Exception:
    """The error that ended a part. Errors: those that end the process."""
    if running.cancelled():
        return RuntimeError("it was cancelled")
    error = running.exception()
    if error is None:
        return RuntimeError("it came to its end")
    if not isinstance(error, Exception):
        raise error
    return error
