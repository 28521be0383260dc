"""The events of one watch, in turns by namespace, until kopf takes them.

kopf handles each event that it gets, and holds those that wait. It takes 1 ms of the loop for one, and tenants decide
how many there are. So events wait here: of an object only the last one, and those of a namespace for its share of the
loop's time.

kopf resumes a broken watch at the version of its last event. So an event gets the version from which all that wait
here come again. The object's own version is in its text.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleet_operator.clients.bounded_json import CLOSED
from fleet_operator.ports import Json
from fleet_operator.time_shares import TimeShares
from fleet_operator.turns import Turns

EVENT_SECONDS = 0.001
"""Of the loop, for one event."""
SECONDS_OF_A_BYTE = 3e-7
"""The same for its text, at most: empty lists take longest to parse."""
Event = tuple[str, Json]
"""Type and closed object."""


@dataclass(slots=True)
class _Waiting:
    """The last event of an object. `before`: the version of the event that was read before it."""

    event: Event
    namespace: str
    before: str


class ChangesInTurn:
    """The events that wait. `version`: from which the watch began. `shares`: of the loop."""

    def __init__(self, version: str, shares: TimeShares) -> None:
        self._read = version
        """The version of the last event that was read."""
        self._shares = shares
        self._turns: Turns[str] = Turns(1)
        self._waiting: dict[str, _Waiting] = {}
        """By uid, in the order in which they were read."""
        self._passing: list[Event] = []
        """Those of no object, such as errors."""
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        """Let an event wait. It replaces the one before it of the same object."""
        metadata = event[1].get("metadata", {})
        if "uid" in metadata:
            uid, namespace = metadata["uid"], metadata.get("namespace", "")
            if self._waiting.pop(uid, None) is None:
                self._turns.add((namespace,), uid)
            self._waiting[uid] = _Waiting(event, namespace, self._read)
        else:
            self._passing.append(event)
        self._read = metadata.get("resourceVersion", self._read)
        self._changed.set()

    def end(self) -> None:
        """Note that no event will come. Those that would have to wait come again in the next watch."""
        self._ended = True
        self._changed.set()

    async def next(self) -> Event | None:
        """The event whose turn it is; None at the end."""
        while True:
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            if self._passing:
                return self._resumable(self._passing.pop(0))
            uid = self._turns.take(lambda n: not self._shares.wait_seconds(n, now))
            if uid is not None:
                waiting = self._waiting.pop(uid)
                self._turns.leave((waiting.namespace,))
                text = waiting.event[1].get(CLOSED, "")
                seconds = EVENT_SECONDS + SECONDS_OF_A_BYTE * len(text)
                self._shares.note(waiting.namespace, seconds, now)
                return self._resumable(waiting.event)
            if self._ended:
                return None
            waits = [self._shares.wait_seconds(n, now) for n in self._turns.tenants()]
            try:
                async with asyncio.timeout(min(waits, default=None)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _resumable(self, event: Event) -> Event:
        kind, found = event
        first = next(iter(self._waiting.values()), None)
        version = self._read if first is None else first.before
        if "resourceVersion" not in found.get("metadata", {}):
            return event
        return kind, found | {"metadata": found["metadata"] | {"resourceVersion": version}}
