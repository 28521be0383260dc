"""Writes the parts of a fleet to the API server in the background. No write waits for another one, and
no call to a worker waits for a write.

A part is not written again while a write of it is in flight. The end of that write requests another
reconcile, which writes the latest decision. The outcome of each part is noted as a problem.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from fleet_operator.errors import FleetError
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import FleetProblems

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.25
"""How long a reconcile waits for a write that it needs. An API server answers in milliseconds. One that
hangs must not stop the renewal of pauses, and a write that waits for the share of its namespace must not hold a
place among the reconciles."""
RETRY_SECONDS = 1.0
"""The wait after a failed write, unless the error names another time."""

Write = Callable[[], Awaitable[None]]
"""One write to the API server, skipped if nothing differs."""


@dataclass(slots=True)
class WritesInFlight:
    """The writes of all fleets in flight, by fleet and part. A write may outlast the session that began it. Another
    fleet of that name can own the same objects, so their parts wait for it.

    Fields:
        tasks: each removes itself at its end.
        outdated: those whose end requests a reconcile.
        stopping: whether the operator stops.
    """

    tasks: dict[tuple[FleetKey, str], asyncio.Task[Exception | None]] = field(default_factory=dict)
    outdated: set[tuple[FleetKey, str]] = field(default_factory=set)
    stopping: bool = False

    async def stop(self) -> None:
        """Cancel all writes in flight."""
        self.stopping = True
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BackgroundWrites:
    """Writes of one fleet in the background, by part.

    `in_flight`: the writes of all fleets.
    """

    def __init__(
        self,
        key: FleetKey,
        problems: FleetProblems,
        metrics: Metrics,
        requeue: Callable[[FleetKey, float], None],
        in_flight: WritesInFlight,
    ) -> None:
        self._key = key
        self._problems = problems
        self._metrics = metrics
        self._requeue = requeue
        self._in_flight = in_flight

    def begin(
        self, writes: Mapping[str, Write], *, awaited: Collection[str] = ()
    ) -> list[asyncio.Task[Exception | None]]:
        """Begin the writes that are not in flight. Returns: those that were begun.

        `awaited`: parts whose end changes the decision, and therefore requests a reconcile.
        """
        begun = []
        for part, write in writes.items():
            in_flight = self.is_running(part)
            if in_flight or part in awaited:
                self._in_flight.outdated.add((self._key, part))
            if not in_flight:
                begun.append(self._begin(part, write))
        return begun

    def is_running(self, part: str) -> bool:
        """Whether a write of this part is in flight. Its end requests a reconcile that has asked for it."""
        return (self._key, part) in self._in_flight.tasks

    async def run(self, writes: Mapping[str, Write]) -> None:
        """Begin the writes that are not in flight, and wait for them up to `WAIT_SECONDS`."""
        begun = self.begin(writes)
        if begun:
            _, slow = await asyncio.wait(begun, timeout=WAIT_SECONDS)
            for task in slow:
                task.add_done_callback(lambda _: self._requeue(self._key, 0))

    def _begin(self, part: str, write: Write) -> asyncio.Task[Exception | None]:
        task = asyncio.create_task(self._write(part, write))
        self._in_flight.tasks[self._key, part] = task
        task.add_done_callback(partial(self._end, part))
        return task

    def _end(self, part: str, task: asyncio.Task[Exception | None]) -> None:
        del self._in_flight.tasks[self._key, part]
        outdated = (self._key, part) in self._in_flight.outdated
        self._in_flight.outdated.discard((self._key, part))
        if task.cancelled():
            if not self._in_flight.stopping:  # kopf cancels tasks when it ends
                self._requeue(self._key, RETRY_SECONDS)
            return
        if (error := task.result()) is not None:
            self._requeue(self._key, getattr(error, "after_seconds", None) or RETRY_SECONDS)
        elif outdated:
            self._requeue(self._key, 0)

    async def _write(self, part: str, write: Write) -> Exception | None:
        try:
            await write()
        except FleetError as error:
            self._metrics.failures.labels(type(error).__name__).inc()
            written = fleet_fields("write_failed", self._key, part=part)
            logger.warning("fleet %s/%s: %s: %s", *self._key, part, error, extra=written)
            self._problems.note(part, error)
            return error
        except Exception as error:  # a defect in one write; it becomes a condition
            self._metrics.failures.labels("defect").inc()
            found = fleet_fields("defect", self._key, part=part)
            logger.error("fleet %s/%s: defect in %s", *self._key, part, exc_info=error, extra=found)
            self._problems.note(part, error)
            return error
        if self._problems.has(part):
            self._problems.note(part, None)
            self._in_flight.outdated.add((self._key, part))  # the conditions still report it
        return None
