"""When the pauses of a fleet's workers end by themselves.

A worker whose pause ends leaves the service until it is admitted again. So its fleet is reconciled before
all fleets without paused workers.
"""

from __future__ import annotations

from fleet_worker.protocol import WorkerState


class Pauses:
    """Ends of the pauses of one fleet by pod uid. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def begin(self, uid: str, lease_seconds: float, now: float) -> None:
        """Note a call that pauses a worker. Its answer may be lost, or come late."""
        self._ends[uid] = now + lease_seconds

    def note(self, uid: str, state: WorkerState, now: float) -> None:
        """Note the state that a worker reports."""
        if state.pause is not None:
            self.begin(uid, state.pause.lease_remaining_seconds, now)
        else:
            self._ends.pop(uid, None)

    def deadline(self, now: float) -> float | None:
        """When the first pause ends; None if none lasts."""
        first = min(self._ends.values(), default=None)
        if first is None or first > now:
            return first
        # Of workers that are gone, or whose pause has ended.
        self._ends = {uid: end for uid, end in self._ends.items() if end > now}
        return min(self._ends.values(), default=None)
