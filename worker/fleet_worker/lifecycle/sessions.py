"""How many sessions a worker serves: the operator updates the worker with the fewest first."""

from __future__ import annotations

from collections import OrderedDict

from fleet_worker.engine.port import Clock

WINDOW_SECONDS = 300.0
"""How long a session counts after the start of its last request. Between two turns a rollout may run
tools for minutes, and its prefix stays in the cache.
"""
MAX_SESSIONS = 65_536
"""Clients choose the names: beyond this number the sessions that were quiet for longest are dropped."""


class Sessions:
    """The sessions of the last minutes. It keeps hashes, since clients choose how long names are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: OrderedDict[int, float] = OrderedDict()
        """Hash of a session's name → the start of its last request, in the order of these times."""

    def note(self, name: bytes) -> None:
        """A request of this session begins."""
        key = hash(name)
        self._last[key] = self._clock()
        self._last.move_to_end(key)
        if len(self._last) > MAX_SESSIONS:
            self._last.popitem(last=False)

    @property
    def count(self) -> int:
        """The number of sessions with a request in the last `WINDOW_SECONDS`."""
        oldest = self._clock() - WINDOW_SECONDS
        while self._last and next(iter(self._last.values())) < oldest:
            self._last.popitem(last=False)
        return len(self._last)
