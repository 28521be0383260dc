"""Writes the parts of a fleet to the API server in the background. No write waits for another one, and
no call to a worker waits for a write.

A part is not written again while a write of it is in flight. The end of that write requests another
reconcile, which writes the latest decision. The outcome of each part is noted as a problem.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from fleet_operator.errors import FleetError
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import Problems

logger = logging.getLogger(__name__)

WAIT_SECONDS = 2.0
"""How long a reconcile waits for a write that it needs. An API server answers in milliseconds. One that
hangs must not stop the renewal of pauses."""
RETRY_SECONDS = 1.0
"""The wait after a failed write, unless the error names another time."""

Part = tuple[FleetKey, str]

Write = Callable[[], Awaitable[None]]
"""One write to the API server, skipped if nothing differs."""


class BackgroundWrites:
    """Writes in flight, by fleet and part.

    Args:
        problems: Collects the outcome of each part.
        metrics: Counts failures.
        requeue: Requests a reconcile of a fleet.
    """

    def __init__(
        self, problems: Problems, metrics: Metrics, requeue: Callable[[FleetKey, float], None]
    ) -> None:
        self._problems = problems
        self._metrics = metrics
        self._requeue = requeue
        self._tasks: dict[Part, asyncio.Task[Exception | None]] = {}
        self._outdated: set[Part] = set()
        """Parts in flight whose end requests a reconcile."""
        self._stopping = False

    def begin(
        self, key: FleetKey, writes: Mapping[str, Write], *, awaited: Collection[str] = ()
    ) -> list[asyncio.Task[Exception | None]]:
        """Begin the writes that are not in flight. Returns: those that were begun.

        `awaited`: parts whose end changes the decision, and therefore requests a reconcile.
        """
        begun = []
        for part, write in writes.items():
            in_flight = (key, part) in self._tasks
            if in_flight or part in awaited:
                self._outdated.add((key, part))
            if not in_flight:
                begun.append(self._begin(key, part, write))
        return begun

    async def run(self, key: FleetKey, writes: Mapping[str, Write]) -> None:
        """Begin the writes that are not in flight, and wait for them up to `WAIT_SECONDS`."""
        begun = self.begin(key, writes)
        if begun:
            _, slow = await asyncio.wait(begun, timeout=WAIT_SECONDS)
            for task in slow:
                task.add_done_callback(lambda _: self._requeue(key, 0))

    async def stop(self) -> None:
        """Cancel all writes in flight."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: FleetKey, part: str, write: Write) -> asyncio.Task[Exception | None]:
        task = asyncio.create_task(self._write(key, part, write))
        self._tasks[key, part] = task
        task.add_done_callback(partial(self._end, key, part))
        return task

    def _end(self, key: FleetKey, part: str, task: asyncio.Task[Exception | None]) -> None:
        del self._tasks[key, part]
        outdated = (key, part) in self._outdated
        self._outdated.discard((key, part))
        if task.cancelled():
            if not self._stopping:  # kopf cancels tasks when it ends
                self._requeue(key, RETRY_SECONDS)
            return
        if (error := task.result()) is not None:
            self._requeue(key, getattr(error, "after_seconds", None) or RETRY_SECONDS)
        elif outdated:
            self._requeue(key, 0)

    async def _write(self, key: FleetKey, part: str, write: Write) -> Exception | None:
        try:
            await write()
        except FleetError as error:
            self._metrics.failures.labels(type(error).__name__).inc()
            written = fleet_fields("write_failed", key, part=part)
            logger.warning("fleet %s/%s: %s: %s", *key, part, error, extra=written)
            self._problems.note(key, part, error)
            return error
        except Exception as error:  # a defect in one write; it becomes a condition
            self._metrics.failures.labels("defect").inc()
            found = fleet_fields("defect", key, part=part)
            logger.error("fleet %s/%s: defect in %s", *key, part, exc_info=error, extra=found)
            self._problems.note(key, part, error)
            return error
        if self._problems.has(key, part):
            self._problems.note(key, part, None)
            self._outdated.add((key, part))  # the conditions still report it
        return None
