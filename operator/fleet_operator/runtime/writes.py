"""Writes of a fleet to the API server, part by part: none waits for another one, and workers wait for
none.

A write that takes long goes on in the background, and its part is not written again before it has
ended: what is written then is what was decided last. How each part ended is noted as a trouble.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from fleet_operator.errors import FleetError
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Write
from fleet_operator.runtime.troubles import Troubles

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2.0
"""How long a reconcile waits for its writes. An API server answers in milliseconds; one that hangs
must not keep a fleet from renewing its pauses."""


class Writes:
    """Writes in flight, by fleet and part.

    Args:
        troubles: Where it is noted how each part ended.
        metrics: Failures are counted.
        again: Asks for a reconcile of a fleet.
    """

    def __init__(
        self, troubles: Troubles, metrics: Metrics, again: Callable[[FleetKey, float], None]
    ) -> None:
        self._troubles = troubles
        self._metrics = metrics
        self._again = again
        self._tasks: dict[tuple[FleetKey, str], asyncio.Task[Exception | None]] = {}

    async def run(
        self, key: FleetKey, writes: Mapping[str, Write], *, wait_seconds: float = WAIT_SECONDS
    ) -> list[Exception]:
        """Begin what is not in flight, and wait a moment. Returns: errors of what has ended."""
        begun = [
            self._begin(key, part, write)
            for part, write in writes.items()
            if (key, part) not in self._tasks
        ]
        if not begun:
            return []
        done, slow = await asyncio.wait(begun, timeout=wait_seconds)
        for task in slow:
            task.add_done_callback(lambda _: self._again(key, 0))
        return [error for task in done if (error := task.result()) is not None]

    async def stop(self) -> None:
        """Give up everything in flight."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: FleetKey, part: str, write: Write) -> asyncio.Task[Exception | None]:
        task = asyncio.create_task(self._write(key, part, write))
        self._tasks[key, part] = task
        task.add_done_callback(lambda _: self._tasks.pop((key, part)))
        return task

    async def _write(self, key: FleetKey, part: str, write: Write) -> Exception | None:
        try:
            await write()
        except FleetError as error:
            self._metrics.failures.labels(type(error).__name__).inc()
            logger.warning("fleet %s/%s: %s: %s", *key, part, error)
            self._troubles.note(key, part, error)
            return error
        except Exception as error:  # a defect in one write; it becomes a condition
            self._metrics.failures.labels("defect").inc()
            logger.error("fleet %s/%s: defect in %s", *key, part, exc_info=error)
            self._troubles.note(key, part, error)
            return error
        self._troubles.note(key, part, None)
        return None
