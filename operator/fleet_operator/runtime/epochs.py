"""The epoch that every call carries: the leader's term, and a number that grows with every new goal
of a fleet within that term, so that a call for an older goal that arrives late is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from fleet_operator.runtime.informer import FleetKey
from fleet_worker.protocol import Epoch


class Epochs:
    """Sequences of all fleets. Memory only: a new process has a new term."""

    def __init__(self, term: Callable[[], int]) -> None:
        self._term = term
        self._goals: dict[FleetKey, tuple[str, int]] = {}

    def last(self, key: FleetKey) -> Epoch:
        """The epoch of the fleet's present goal."""
        _, sequence = self._goals.get(key, ("", 0))
        return Epoch(term=self._term(), sequence=sequence)

    def for_step(self, key: FleetKey, goal_version: str) -> Epoch:
        """The epoch of a step towards this version."""
        version, sequence = self._goals.get(key, ("", 0))
        if version != goal_version:
            self._goals[key] = (goal_version, sequence + 1)
        return self.last(key)
