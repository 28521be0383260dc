"""When the pauses of each fleet's workers end by themselves.

A worker whose pause ends leaves the service until it is admitted again. So its fleet is reconciled before
all fleets without paused workers.
"""

from __future__ import annotations

from fleet_operator.runtime.pod_informer import FleetKey
from fleet_worker.protocol import WorkerState


class Pauses:
    """Ends of pauses by fleet and pod uid. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._ends: dict[FleetKey, dict[str, float]] = {}

    def begin(self, key: FleetKey, uid: str, lease_seconds: float, now: float) -> None:
        """Note a call that pauses a worker. Its answer may be lost, or come late."""
        self._ends.setdefault(key, {})[uid] = now + lease_seconds

    def note(self, key: FleetKey, uid: str, state: WorkerState, now: float) -> None:
        """Note the state that a worker reports."""
        if state.pause is not None:
            self.begin(key, uid, state.pause.lease_remaining_seconds, now)
        elif (ends := self._ends.get(key)) is not None:
            ends.pop(uid, None)
            if not ends:
                del self._ends[key]

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._ends.pop(key, None)

    def deadline(self, key: FleetKey, now: float) -> float | None:
        """When the first pause of a fleet ends; None if none lasts."""
        ends = self._ends.get(key)
        if ends is None:
            return None
        first = min(ends.values())
        if first <= now:  # Of workers that are gone, or whose pause has ended.
            self._ends[key] = ends = {uid: end for uid, end in ends.items() if end > now}
            if not ends:
                del self._ends[key]
                return None
            first = min(ends.values())
        return first
