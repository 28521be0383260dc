"""Decides all actions and statuses of one fleet, from one observation.

`decide` is the only entry, and `deciding` the same in steps. The runtime carries its decisions out, and so does the
simulator of the tests, so that the simulator tests the code that runs.

Each part is computed by itself: a part that raises becomes the condition `InternalError`, and the
other parts continue. Without a rollout plan the only calls renew the pauses of held workers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet_operator.core import lora
from fleet_operator.core.actions import Admit, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.fallback_plan import fallback_plan, no_pod_changes
from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.idle_weights import idle_statuses, problems_of_number
from fleet_operator.core.lateness import problems_of_joining
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.permits import first_calls
from fleet_operator.core.pod_actions import BeginDrain, EndDrain, PodAction, Quarantine
from fleet_operator.core.problems import (
    Defect,
    Parts,
    kept_fleet_status,
    kept_weights_status,
    with_problems,
)
from fleet_operator.core.rollout_plan import RolloutPlan, plan_rollout, wished_rollout
from fleet_operator.core.staleness import wanted_of, with_unheard
from fleet_operator.core.unheeded_calls import problems_of_calls
from fleet_operator.core.unreadable import (
    problems_of,
    problems_of_weights,
    suspend_unreadable,
)
from fleet_operator.core.weights_status import weights_status
from fleet_worker.protocol import WantedRequest
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The actions and statuses of a fleet.

    Fields:
        rollout: the plan for the base weights.
        lora_plans: the plans for LoRA adapters, by uid of their WeightVersion.
        worker_calls: at most one for each worker, and none for a worker whose pod is deleted now.
        weights: the status of every WeightVersion in `FleetObserved.all_weights`, by uid.
        wanted: what the workers hear about the desired versions, without its term; None: nothing, since
            no plan says what is desired.
        is_planned: whether there is a plan for the base weights. Otherwise its applied weights are only
            those of the last status.
        defects: parts that raised. Their replacements change nothing.
    """

    rollout: RolloutPlan
    lora_plans: Mapping[str, RolloutPlan]
    pods: FleetPlan
    worker_calls: tuple[WorkerCall, ...]
    pod_actions: tuple[PodAction, ...]
    fleet: FleetStatus
    weights: Mapping[str, WeightsStatus]
    wanted: WantedRequest | None
    is_planned: bool
    defects: tuple[Defect, ...] = ()

    @property
    def at_rest(self) -> bool:
        """Whether every desired version is applied, and no part failed."""
        plans = (self.rollout, *self.lora_plans.values())
        applied = all(p.step.phase is RolloutPhase.APPLIED for p in plans)
        return applied and not self.defects

    @property
    def waits_for_pin(self) -> bool:
        """Whether calls wait until the pins of the fleet's status are stored."""
        return any(p.waits_for_pin for p in (self.rollout, *self.lora_plans.values()))

    @property
    def goals(self) -> Mapping[str, Checkpoint]:
        """The goal of the base weights by "", and those of the adapters by uid of their WeightVersion."""
        return {"": self.rollout.step.goal, **{u: p.step.goal for u, p in self.lora_plans.items()}}

    @property
    def admits(self) -> bool:
        """Whether a call admits a worker."""
        return any(isinstance(call, Admit) for call in self.worker_calls)


_ROLLOUT = "the rollout's plan"
ADAPTERS_OF_A_STEP = 8
"""One adapter takes 0.1 ms and more, and a fleet may have 127: at once they would stop the event loop for long."""


def decide(observed: FleetObserved, *, default_image: str, now: datetime) -> Decision:
    """Decides the actions and statuses of one fleet. Never raises.

    While the spec of the fleet or of a WeightVersion cannot be read, the last readable one stays in
    effect as if suspended. A rollout that holds requests continues to its end, and no new one begins.

    `default_image`: for workers of a fleet that names no image.
    """
    steps = deciding(observed, default_image=default_image, now=now)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            decision: Decision = ended.value
            return decision


def deciding(
    observed: FleetObserved, *, default_image: str, now: datetime
) -> Generator[None, None, Decision]:
    """`decide` in steps, between which other work may run: one for each `ADAPTERS_OF_A_STEP` adapters."""
    parts = Parts()
    observed = parts.run(
        "suspending unreadable specs", lambda: suspend_unreadable(observed), lambda: observed
    )
    wished = parts.run(_ROLLOUT, lambda: wished_rollout(observed, now=now), lambda: None)
    holds_requests = (wished or fallback_plan(observed)).step.holds_requests
    pods = parts.run(
        "the pods' plan",
        lambda: (
            no_pod_changes(observed)
            if observed.unreadable
            else plan_fleet(
                observed, default_image=default_image, holds_requests=holds_requests, now=now
            )
        ),
        lambda: no_pod_changes(observed),
    )
    drains = any(isinstance(a, BeginDrain) for a in pods.actions)
    planned = parts.run(
        _ROLLOUT,
        lambda: (
            plan_rollout(observed, now=now, wished=wished, drain_begins=drains) if wished else None
        ),
        lambda: None,
    )
    rollout = planned or fallback_plan(observed)
    seen = _LoraViews(observed)
    plans = yield from _lora_plans(parts, observed, seen, now)
    steps = [rollout.step, *(plan.step for plan in plans.values())]
    expelled = first_calls(*([a for a in s.actions if isinstance(a, Quarantine)] for s in steps))
    base = [a for a in rollout.step.actions if not isinstance(a, Quarantine)]
    calls = parts.run(
        "the calls for LoRA adapters",
        lambda: first_calls(base, *lora.calls(observed, plans), but=pods.leaving),
        lambda: first_calls(base, but=pods.leaving),
    )
    worker_calls = (*calls, *pods.calls)
    if len(plans) >= ADAPTERS_OF_A_STEP:
        yield
    fleet = parts.run(
        "the fleet's status",
        lambda: (
            fleet_status(
                observed,
                rollout,
                pods,
                pinned_adapters=lora.pinned_adapters(observed, plans),
                now=now,
            )
            if planned
            else kept_fleet_status(observed.status)
        ),
        lambda: kept_fleet_status(observed.status),
    )
    wanted = parts.run(
        "the desired versions for workers",
        lambda: wanted_of(observed, planned.desired, now=now) if planned else None,
        lambda: None,
    )
    idle = idle_statuses(parts, observed, now)
    steering = [w for w in observed.weights if w.uid not in idle]
    weights: dict[str, WeightsStatus] = {}
    for number, w in enumerate(steering, start=1):
        weights[w.uid] = _weights_status(parts, observed, w, plans, planned, seen, fleet, now)
        if number % ADAPTERS_OF_A_STEP == 0:
            yield
    ignored = parts.run(
        "the report on calls",
        lambda: problems_of_calls(observed, worker_calls),
        lambda: (),
    )
    late = parts.run(
        "the report on joining workers",
        lambda: problems_of_joining(wished.view) if wished else (),
        lambda: (),
    )
    known = (*problems_of(observed), *ignored, *late, *problems_of_number(observed))
    problems = (*(d.problem() for d in parts.defects), *known, *observed.problems)
    before, generation = observed.status.conditions, observed.generation
    fleet = with_problems(fleet, before, problems, generation=generation, now=now)
    if wanted is None or not observed.has_token:
        rule = observed.spec.staleness
        fleet = with_unheard(fleet, before, rule, generation=generation, now=now)
    return Decision(
        rollout=rollout,
        lora_plans=plans,
        pods=pods,
        worker_calls=worker_calls,
        pod_actions=(*_without_drains_of(expelled, pods), *expelled),
        fleet=fleet,
        weights={
            w.uid: with_problems(
                weights[w.uid],
                w.status.conditions,
                [*problems_of_weights(w), *(t for t in problems if t.concerns(w.spec.adapter))],
                generation=w.generation,
                now=now,
            )
            for w in steering
        }
        | idle,
        wanted=wanted,
        is_planned=planned is not None,
        defects=tuple(parts.defects),
    )


def _without_drains_of(expelled: Sequence[Quarantine], pods: FleetPlan) -> list[PodAction]:
    """Returns the pod actions without drains of pods that are quarantined now: both write the label
    that the Service selects.
    """
    uids = {a.pod_uid for a in expelled}
    drains = (BeginDrain, EndDrain)
    return [a for a in pods.actions if not (isinstance(a, drains) and a.pod_uid in uids)]


class _LoraViews:
    """The fleet as each adapter's rollout sees it, computed once in a decision."""

    def __init__(self, observed: FleetObserved) -> None:
        self._observed = observed
        self._known: dict[str, FleetObserved] = {}

    def by(self, adapter: str) -> FleetObserved:
        """Returns the fleet from `lora.as_seen_by_lora`."""
        if adapter not in self._known:
            self._known[adapter] = lora.as_seen_by_lora(self._observed, adapter)
        return self._known[adapter]


def _lora_plans(
    parts: Parts, observed: FleetObserved, seen: _LoraViews, now: datetime
) -> Generator[None, None, dict[str, RolloutPlan]]:
    plans: dict[str, RolloutPlan] = {}
    for number, weights in enumerate(observed.lora_weights, start=1):
        plan = parts.run(
            f"the plan of adapter {weights.spec.adapter}",
            lambda w=weights: lora.plan_lora(seen.by(w.spec.adapter), w, now=now),  # type: ignore[misc]  # mypy cannot infer a default
            lambda: None,
        )
        if plan is not None:
            plans[weights.uid] = plan
        if number % ADAPTERS_OF_A_STEP == 0:
            yield
    return plans


def _weights_status(
    parts: Parts,
    observed: FleetObserved,
    weights: WeightsView,
    plans: Mapping[str, RolloutPlan],
    rollout: RolloutPlan | None,
    seen: _LoraViews,
    fleet: FleetStatus,
    now: datetime,
) -> WeightsStatus:
    """`rollout`: the plan for the base weights; None without one."""

    def kept() -> WeightsStatus:
        return kept_weights_status(weights.status, generation=weights.generation)

    def computed() -> WeightsStatus:
        if not weights.spec.adapter:
            if rollout is None:
                return kept()
            return weights_status(observed, weights, rollout, fleet=fleet, now=now)
        if weights.uid not in plans:
            return kept()
        view, of_pods = seen.by(weights.spec.adapter), _without_problem_of(rollout, fleet)
        return weights_status(view, weights, plans[weights.uid], fleet=of_pods, now=now)

    return parts.run(f"the status of WeightVersion {weights.name}", computed, kept)


def _without_problem_of(rollout: RolloutPlan | None, fleet: FleetStatus) -> FleetStatus:
    """The status of the fleet without the problem of the rollout of its base weights, which no adapter has."""
    problem = rollout.step.problem if rollout is not None else None
    if problem is None:
        return fleet
    kept = tuple(c for c in fleet.conditions if c.reason != problem.reason)
    return fleet.model_copy(update={"conditions": kept})
