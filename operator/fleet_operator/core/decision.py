"""One fleet at one moment → everything that is to be done now, and everything that is to be said.

All decisions stand behind `decide`. The runtime carries them out, and so does the simulator of the
tests, so that what is proven there is what runs.

The parts are computed one by one: a part that raises becomes the condition `InternalError`, and the
other parts go on. Without a rollout plan the pauses of held workers are renewed, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core import adapters
from fleet_operator.core.actions import (
    Apply,
    BeginDrain,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
    WorkerCall,
)
from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.refusals import refusal_of
from fleet_operator.core.rollout_plan import RolloutPlan, plan_rollout
from fleet_operator.core.standstill import no_pod_changes, standstill
from fleet_operator.core.troubles import (
    Defect,
    Parts,
    Trouble,
    kept_fleet_status,
    kept_weights_status,
    with_troubles,
)
from fleet_operator.core.weights_status import refused_status, weights_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with a fleet now.

    Fields:
        rollout: of the base weights.
        adapters: uid of an adapter's WeightVersion → its rollout.
        worker_calls: at most one to each worker, and none to one whose pod is deleted now.
        weights: uid → status, of every WeightVersion that names the fleet.
        defects: parts that raised; what stands in their place changes nothing.
    """

    rollout: RolloutPlan
    adapters: Mapping[str, RolloutPlan]
    pods: FleetPlan
    worker_calls: tuple[WorkerCall, ...]
    pod_actions: tuple[PodAction, ...]
    fleet: FleetStatus
    weights: Mapping[str, WeightsStatus]
    defects: tuple[Defect, ...] = ()

    @property
    def at_rest(self) -> bool:
        """Whether every version that is wanted is applied, and nothing failed."""
        plans = (self.rollout, *self.adapters.values())
        applied = all(p.step.phase is RolloutPhase.APPLIED for p in plans)
        return applied and not self.defects

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan for the base weights; otherwise what it says is applied is only
        what was recorded last.
        """
        return not any(d.part == ROLLOUT for d in self.defects)


ROLLOUT = "the rollout's plan"


def decide(observed: FleetObserved, *, default_image: str, now: datetime) -> Decision:
    """Decide everything about one fleet. `default_image`: of workers whose fleet names none.

    Never raises. While the fleet's spec, or a WeightVersion's, cannot be read, the last one that
    could be read is carried on as if suspended: what holds requests is brought to its end, and
    nothing new begins.
    """
    parts = Parts()
    observed = parts.run("what is held back", lambda: _held_back(observed), lambda: observed)
    rollout = parts.run(
        ROLLOUT, lambda: plan_rollout(observed, now=now), lambda: standstill(observed)
    )
    disturbed = rollout.step.disturbed
    pods = parts.run(
        "the pods' plan",
        lambda: (
            no_pod_changes(observed)
            if observed.unreadable
            else plan_fleet(observed, default_image=default_image, disturbed=disturbed, now=now)
        ),
        lambda: no_pod_changes(observed),
    )
    seen = _SeenAs(observed)
    plans = _adapter_plans(parts, observed, seen)
    actions = rollout.step.actions
    going = {a.uid for a in pods.actions if isinstance(a, DeletePod)} | pods.claimed
    expelled = tuple(a for a in actions if isinstance(a, Quarantine))
    # Swaps wait for the next look when a worker begins to drain that counted as serving for them.
    drains = any(isinstance(a, BeginDrain) for a in pods.actions)
    calls_to_workers = [a for a in actions if not isinstance(a, Quarantine)]
    base = [a for a in calls_to_workers if not (drains and isinstance(a, Apply))]
    calls = parts.run(
        "the calls for adapters",
        lambda: adapters.with_adapters(base, observed, plans),
        lambda: list({c.pod_uid: c for c in base}.values()),
    )
    fleet = parts.run(
        "the fleet's status",
        lambda: (
            fleet_status(observed, rollout, pods, now=now)
            if _is_planned(parts)
            else kept_fleet_status(observed.status)
        ),
        lambda: kept_fleet_status(observed.status),
    )
    weights = {
        w.uid: _weights_status(parts, observed, w, plans, rollout, seen, now)
        for w in observed.weights
    }
    troubles = (*(d.trouble() for d in parts.defects), *_unreadable(observed), *observed.troubles)
    return Decision(
        rollout=rollout,
        adapters=plans,
        pods=pods,
        worker_calls=(*(c for c in calls if c.pod_uid not in going), *pods.calls),
        pod_actions=(*_but_for(expelled, pods), *expelled),
        fleet=with_troubles(
            fleet, observed.status.conditions, troubles, generation=observed.generation, now=now
        ),
        weights={
            w.uid: with_troubles(
                weights[w.uid],
                w.status.conditions,
                [*_unreadable_weights(w), *(t for t in troubles if t.concerns_weights)],
                generation=w.generation,
                now=now,
            )
            for w in observed.weights
        }
        | {u.uid: _unread_status(u, now) for u in observed.unread},
        defects=tuple(parts.defects),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Statuses of a fleet about which nothing is decided. `weights`: by uid."""

    fleet: FleetStatus
    weights: Mapping[str, WeightsStatus]


def report_undecided(
    name: str,
    *,
    generation: int,
    unreadable: str,
    status: FleetStatus,
    weights: Sequence[WeightsView | UnreadWeights],
    troubles: Sequence[Trouble],
    now: datetime,
) -> Report:
    """The statuses of a fleet whose spec, or whose pods, could not be read yet: nothing is done with
    its workers.

    Nor are pauses renewed: whether they are the operator's or a trainer's stands in the spec, and which
    workers there are is known from the pods.

    `unreadable`: why the spec cannot be read; empty if it can.
    """
    message = (
        f"generation {generation} of InferenceFleet {name} cannot be read: {unreadable}. The operator "
        "has read no earlier one: it leaves the workers alone. Repair the spec"
    )
    invalid = [_invalid("spec", message, concerns_weights=True)] if unreadable else []
    found = [*invalid, *troubles]
    concerning = [t for t in found if t.concerns_weights]
    return Report(
        fleet=with_troubles(
            kept_fleet_status(status), status.conditions, found, generation=generation, now=now
        ),
        weights={
            w.uid: with_troubles(
                kept_weights_status(w.status, generation=w.generation),
                w.status.conditions,
                concerning,
                generation=w.generation,
                now=now,
            )
            for w in weights
        },
    )


def _but_for(expelled: Sequence[Quarantine], pods: FleetPlan) -> list[PodAction]:
    """The changes of pods, without drains of those that are quarantined now: both write the label
    on which the Service selects.
    """
    uids = {a.uid for a in expelled}
    drains = (BeginDrain, EndDrain)
    return [a for a in pods.actions if not (isinstance(a, drains) and a.uid in uids)]


def _is_planned(parts: Parts) -> bool:
    return not any(d.part == ROLLOUT for d in parts.defects)


def _held_back(observed: FleetObserved) -> FleetObserved:
    """What cannot be read begins nothing new; nor does anything of a fleet that cannot be read."""
    if not observed.unreadable and not any(w.unreadable for w in observed.weights):
        return observed
    return replace(
        observed,
        weights=tuple(
            replace(w, spec=w.spec.model_copy(update={"suspend": True}))
            if w.unreadable or observed.unreadable
            else w
            for w in observed.weights
        ),
    )


class _SeenAs:
    """The fleet as each adapter's rollout sees it, projected once in a decision."""

    def __init__(self, observed: FleetObserved) -> None:
        self._observed = observed
        self._known: dict[str, FleetObserved] = {}

    def by(self, adapter: str) -> FleetObserved:
        """As `adapters.seen_as` gives it."""
        if adapter not in self._known:
            self._known[adapter] = adapters.seen_as(self._observed, adapter)
        return self._known[adapter]


def _adapter_plans(parts: Parts, observed: FleetObserved, seen: _SeenAs) -> dict[str, RolloutPlan]:
    plans: dict[str, RolloutPlan] = {}
    for weights in observed.adapter_weights:
        plan = parts.run(
            f"the plan of adapter {weights.spec.adapter}",
            lambda w=weights: adapters.plan_adapter(seen.by(w.spec.adapter), w),  # type: ignore[misc]
            lambda: None,
        )
        if plan is not None:
            plans[weights.uid] = plan
    return plans


def _weights_status(
    parts: Parts,
    observed: FleetObserved,
    weights: WeightsView,
    plans: Mapping[str, RolloutPlan],
    rollout: RolloutPlan,
    seen: _SeenAs,
    now: datetime,
) -> WeightsStatus:
    def kept() -> WeightsStatus:
        return kept_weights_status(weights.status, generation=weights.generation)

    def computed() -> WeightsStatus:
        refusal = refusal_of(observed, weights)
        if refusal is not None:
            return refused_status(weights, *refusal, now=now)
        if not weights.spec.adapter:
            return weights_status(observed, weights, rollout, now=now) if planned else kept()
        if weights.uid not in plans:
            return kept()
        fleet = seen.by(weights.spec.adapter)
        return weights_status(fleet, weights, plans[weights.uid], now=now)

    planned = _is_planned(parts)
    return parts.run(f"the status of WeightVersion {weights.name}", computed, kept)


def _unreadable(observed: FleetObserved) -> tuple[Trouble, ...]:
    found = []
    if observed.unreadable:
        message = (
            f"generation {observed.generation} of InferenceFleet {observed.name} cannot be read: "
            f"{observed.unreadable}. The last spec that could be read stays in effect: rollouts are "
            "brought to their end, no new one begins, and no pod changes. Repair the spec"
        )
        found.append(_invalid("spec", message, concerns_weights=True))
    found += [_invalid(f"WeightVersion {u.name}", _unread_message(u)) for u in observed.unread]
    return tuple(found)


def _unreadable_weights(weights: WeightsView) -> tuple[Trouble, ...]:
    if not weights.unreadable:
        return ()
    message = (
        f"generation {weights.generation} of WeightVersion {weights.name} cannot be read: "
        f"{weights.unreadable}. The spec before it stays in effect, and no new rollout begins. "
        "Repair the spec"
    )
    return (_invalid("spec", message),)


def _unread_status(weights: UnreadWeights, now: datetime) -> WeightsStatus:
    kept = kept_weights_status(weights.status, generation=weights.generation)
    trouble = _invalid("spec", _unread_message(weights))
    before = weights.status.conditions
    return with_troubles(kept, before, [trouble], generation=weights.generation, now=now)


def _unread_message(weights: UnreadWeights) -> str:
    return (
        f"generation {weights.generation} of WeightVersion {weights.name} cannot be read: "
        f"{weights.unreadable}. It has no effect; the fleet goes on with what it serves. Repair the spec"
    )


def _invalid(part: str, message: str, *, concerns_weights: bool = False) -> Trouble:
    return Trouble(
        part=part,
        reason=ConditionReason.INVALID_SPEC,
        message=message,
        concerns_weights=concerns_weights,
    )
