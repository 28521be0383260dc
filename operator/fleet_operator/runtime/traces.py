"""The protocols of tracing. `tracing` implements them, and is imported only where tracing is on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.observed import UnreadWeights, WeightsView
from fleet_operator.runtime.pod_informer import FleetKey
from rlfleet_resources.weights_status import WeightsStatus


class CallTrace(Protocol):
    """Takes the calls of one reconcile."""

    def ended(self, action: WorkerCall, outcome: str, seconds: float) -> None:
        """Note a call that has ended now, and the time that it took."""


class RolloutTraces(Protocol):
    """Takes the rollouts of all fleets."""

    def update(
        self,
        key: FleetKey,
        before: CallTrace | None,
        weights: Iterable[WeightsView | UnreadWeights],
        statuses: Mapping[str, WeightsStatus],
        *,
        now: datetime,
    ) -> CallTrace:
        """Note the rollouts of a fleet that are under way or have ended.

        Args:
            key: The fleet.
            before: What the last update of this fleet has returned; None before the first one.
            weights: Its WeightVersions with their statuses before.
            statuses: Their new statuses, by uid.
            now: The time of the new statuses.

        Returns: the trace of the calls that follow.
        """
