"""Which LoRA adapters a worker must have before it is admitted."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import same_weights
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.worker_view import WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraGoal:
    """One adapter: its name, the desired version, and the applied version, if there is one."""

    name: str
    desired: Checkpoint
    applied: Checkpoint | None

    def is_met_by(self, worker: WorkerView) -> bool:
        """Whether this adapter lets a worker be admitted.

        An adapter that no worker has served yet does not block. Nor does any adapter block a worker
        without adapter slots: its pod has an older template and will be replaced.
        """
        if self.applied is None or not worker.takes_lora:
            return True
        held = worker.adapter(self.name)
        return held is not None and (
            same_weights(held, self.desired) or same_weights(held, self.applied)
        )


def lora_goals_of(observed: FleetObserved) -> tuple[LoraGoal, ...]:
    """Returns one goal for each adapter of the fleet."""
    return tuple(
        LoraGoal(name=w.spec.adapter, desired=w.desired, applied=applied_lora(w))
        for w in observed.lora_weights
    )


def applied_lora(weights: WeightsView) -> Checkpoint | None:
    """Returns the applied weights from the status of a WeightVersion, if there are any."""
    applied = weights.status.applied
    return Checkpoint.recorded(applied) if applied is not None else None
