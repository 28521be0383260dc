"""The events of a watch, in turns by namespace, until kopf takes them.

kopf handles each event that it gets, and holds those that wait. It takes 1 ms of the loop for one, and tenants decide
how many there are. So events wait here: of an object only the last one, and those of a namespace for its share of the
loop's time.

kopf resumes a broken watch at the version of its last event. So each event gets the version of the one read last, and
those that wait stay here, as does one that kopf has not taken. If they came again, so would later ones of others: the
store would go back. The object's own version is in its text.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

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


class _Offered(NamedTuple):
    """The last event that kopf could take, and the version at which it resumes if it did. `uid`: None without one."""

    uid: str | None
    event: Event
    version: str


class ChangesInTurn:
    """The events of one kind of object that wait, over all watches of it. `shares`: of the loop."""

    def __init__(self, shares: TimeShares) -> None:
        self._shares = shares
        self._read = self._taken_at = ""
        """The versions of the last event that was read, and with the last one that kopf has taken."""
        self._offered: _Offered | None = None
        self._forget()

    def _forget(self) -> None:
        self._turns: Turns[str] = Turns(1)
        self._waiting: dict[str, Event] = {}
        """By uid."""
        self._passing: list[Event] = []
        """Those of no object, such as errors."""
        self._changed = asyncio.Event()

    def begin(self, version: str) -> None:
        """Note that a watch begins. If kopf has not taken the last event, that waits again. Another `version` than those
        of events means that kopf has listed all objects since, so that none has to wait any more.
        """
        offered, self._offered = self._offered, None
        if version == self._taken_at:
            if offered is not None and offered.uid and offered.uid not in self._waiting:
                self._wait(offered.uid, offered.event)
        elif offered is None or version != offered.version:
            self._forget()
            self._read = version
        self._taken_at = version

    def put(self, event: Event) -> None:
        """Let an event wait. It replaces the one before it of the same object. Nothing reads the text of one that
        was deleted.
        """
        kind, found = event
        metadata = found.get("metadata", {})
        if "uid" in metadata:
            uid = metadata["uid"]
            if kind == "DELETED":
                found = {name: value for name, value in found.items() if name != CLOSED}
            self._wait(uid, (kind, found))
        else:
            self._passing.append(event)
        self._read = metadata.get("resourceVersion", self._read)
        self._changed.set()

    def _wait(self, uid: str, event: Event) -> None:
        if uid not in self._waiting:
            self._turns.add((_namespace_of(event),), uid)
        self._waiting[uid] = event

    async def next(self, reading: asyncio.Future[None]) -> Event | None:
        """The event whose turn it is: kopf has taken the one before. None at the end of `reading`, if none may go now."""
        if self._offered is not None:
            self._taken_at, self._offered = self._offered.version, None
        reading.add_done_callback(self._wake)
        try:
            while (event := self._offer()) is None and not reading.done():
                self._changed.clear()
                now = asyncio.get_running_loop().time()
                waits = [self._shares.wait_seconds(n, now) for n in self._turns.tenants()]
                try:
                    async with asyncio.timeout(min(waits, default=None)):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            reading.remove_done_callback(self._wake)
        return event

    def _wake(self, _: asyncio.Future[None]) -> None:
        self._changed.set()

    def _offer(self) -> Event | None:
        """The event that may go now, with the version at which kopf resumes after it."""
        now, uid = asyncio.get_running_loop().time(), None
        if self._passing:
            event = self._passing.pop(0)
        else:
            uid = self._turns.take(lambda n: not self._shares.wait_seconds(n, now))
            if uid is None:
                return None
            event = self._waiting.pop(uid)
            namespace = _namespace_of(event)
            self._turns.leave((namespace,))
            seconds = EVENT_SECONDS + SECONDS_OF_A_BYTE * len(event[1].get(CLOSED, ""))
            self._shares.note(namespace, seconds, now)
        kind, found = event
        if "resourceVersion" not in found.get("metadata", {}):
            return event
        self._offered = _Offered(uid, event, self._read)
        return kind, found | {"metadata": found["metadata"] | {"resourceVersion": self._read}}


def _namespace_of(event: Event) -> str:
    namespace: str = event[1]["metadata"].get("namespace", "")
    return namespace
