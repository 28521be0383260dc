"""What a worker must have of the fleet's adapters before it is admitted."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.core.identity import same_weights
from fleet_operator.core.observed import FleetObserved, Target, WeightsView, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterGoal:
    """One adapter: its name, the wanted version, and the one that the fleet served last, if any."""

    name: str
    desired: Target
    applied: Target | None

    def is_met_by(self, worker: WorkerView) -> bool:
        """Whether a worker may be admitted as far as this adapter goes.

        One that no worker has ever served keeps nobody out; nor does a worker whose template is
        older than the room for adapters: it goes anyhow.
        """
        if self.applied is None or not worker.takes_adapters:
            return True
        held = worker.adapter(self.name)
        return held is not None and (
            same_weights(held, self.desired) or same_weights(held, self.applied)
        )


def goals_of(observed: FleetObserved) -> tuple[AdapterGoal, ...]:
    """One goal for each adapter that the fleet serves."""
    return tuple(
        AdapterGoal(name=w.spec.adapter, desired=w.desired, applied=recorded_of(w))
        for w in observed.adapter_weights
    )


def recorded_of(weights: WeightsView) -> Target | None:
    """What workers served last with one voice, as its status has it."""
    applied = weights.status.applied
    return Target.recorded(applied) if applied is not None else None
