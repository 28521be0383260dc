"""Which LoRA adapters a worker must have before it is admitted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts
from fleet_operator.core.identity import same_weights
from fleet_operator.core.lora_pins import known_pins
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.pins import Pins
from fleet_operator.core.worker_view import Standing, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraGoal:
    """One adapter: its name, the desired version, the applied version if there is one, and its pins."""

    name: str
    desired: Checkpoint
    applied: Checkpoint | None
    pins: Pins

    def is_met_by(self, worker: WorkerView) -> bool:
        """Whether this adapter lets a worker be admitted.

        An adapter that no worker has served yet does not block, unless the worker has other bytes of it than
        the pinned ones. Nor does any adapter block a worker without adapter slots: its pod has an older
        template and will be replaced. Bytes that are not pinned yet do not let a worker in.
        """
        held = worker.adapter(self.name)
        if not worker.takes_lora:
            return True
        if self.applied is None:
            return not self.is_contradicted_by(worker)
        if held is None or not self.pins.allows(held):
            return False
        return same_weights(held, self.desired) or same_weights(held, self.applied)

    def is_contradicted_by(self, worker: WorkerView) -> bool:
        """Whether a worker has other bytes of its version of this adapter than the pinned ones."""
        held = worker.adapter(self.name)
        pin = self.pins.of(held) if held is not None else None
        return held is not None and pin is not None and held.digest not in {None, pin.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwantedLora:
    """An adapter that no WeightVersion steers, and that a joining worker has. Nothing says which bytes its tokens may
    come from, so the worker is admitted without it.
    """

    name: str

    def is_met_by(self, worker: WorkerView) -> bool:
        """Whether the worker serves no such adapter."""
        return worker.adapter(self.name) is None


JoinersLora = LoraGoal | UnwantedLora


def joiners_lora_of(observed: FleetObserved) -> tuple[JoinersLora, ...]:
    """Returns what joining workers need before they are admitted: each adapter of the fleet, and no other one, as
    far as every WeightVersion can be read.
    """
    goals = lora_goals_of(observed)
    if observed.is_external or observed.unread:
        return goals
    names = {goal.name for goal in goals}
    joining = observed.workers.where(lambda f: f.has_lora and f.standing is Standing.CLOSED)
    held = {a.name for w in joining if w.state is not None for a in w.state.adapters}
    return (*goals, *(UnwantedLora(name=name) for name in sorted(held - names)))


def lora_goals_of(observed: FleetObserved) -> tuple[LoraGoal, ...]:
    """Returns one goal for each adapter of the fleet."""
    return tuple(_goal(observed, weights) for weights in observed.lora_weights)


def _goal(observed: FleetObserved, weights: WeightsView) -> LoraGoal:
    name, applied = weights.spec.adapter, applied_lora(observed, weights)
    pins = known_pins(observed, name)
    return LoraGoal(
        name=name,
        desired=pins.resolved(weights.desired),
        applied=pins.resolved(applied) if applied else None,
        pins=pins,
    )


def applied_lora(observed: FleetObserved, weights: WeightsView) -> Checkpoint | None:
    """Returns the applied weights of an adapter, if there are any.

    The status of its WeightVersion records them. A WeightVersion that was created again has no such
    record: if workers still serve another version than the desired one, that version counts.
    """
    applied = weights.status.applied
    if applied is not None:
        return Checkpoint.recorded(applied)
    name = weights.spec.adapter
    pins = known_pins(observed, name)
    served = Counter(
        pin
        for worker in observed.workers.where(_serves_lora)
        if (held := worker.adapter(name)) is not None
        and (pin := pins.of(held)) is not None
        and pins.allows(held)
    )
    if not served:
        return None
    pin = served.most_common(1)[0][0]
    found = Checkpoint(
        version=pin.version, source=pin.source, digest=pin.digest, run_id=pin.run_id, pinned=True
    )
    is_desired = same_weights(found, weights.desired) and found.source == weights.desired.source
    return None if is_desired else found


def _serves_lora(worker: Facts) -> bool:
    return worker.has_lora and worker.standing in {Standing.OPEN, Standing.HELD}
