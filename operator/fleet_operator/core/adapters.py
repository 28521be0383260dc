"""LoRA adapters: which version of each a fleet's workers should serve beside the base weights.

An adapter's rollout is that of a fleet whose workers have the adapter's version where the base
weights' stands: `seen_as` projects it so, and what speaks of versions, failures and laggards is the
same for both.

Nobody is paused: a worker gives new requests the new version, and running ones go on with the one
they began with. So there is one way for all strategies: everybody at once, each by itself.

    worker serves or joins, has another version     PutAdapter
    its last answer was a refusal                   again after 10 s; more than maxFailures: said
    no WeightVersion names an adapter it has        RemoveAdapter

A joiner is admitted when it has every adapter at the wanted version or at the one that the fleet
served last. An adapter that no worker has ever served keeps nobody out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Quarantine, WorkerCall
from fleet_operator.core.adapter_goals import recorded_of
from fleet_operator.core.amounts import rounded_down
from fleet_operator.core.awaiting import wait
from fleet_operator.core.counts import counted_of
from fleet_operator.core.identity import same_weights
from fleet_operator.core.observed import (
    FleetObserved,
    Standing,
    Target,
    WeightsView,
    WorkerView,
)
from fleet_operator.core.problems import names, problem_of, some, unready
from fleet_operator.core.rewind import rewind_problem
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.roots import roots_problem
from fleet_operator.core.step import Problem, Step
from fleet_worker.protocol import Phase


def plan_adapter(observed: FleetObserved, weights: WeightsView) -> RolloutPlan:
    """Decide the next step of one adapter's rollout. `observed`: as `seen_as` gives it."""
    recorded = recorded_of(weights)
    desired = replace(weights.desired, awaited=_is_new(weights.desired, recorded))
    settings = weights.spec.rollout.over(observed.spec.rollout)
    refused = rewind_problem(weights, recorded) if recorded else None
    refused = refused or roots_problem(desired, observed)
    stays = weights.spec.suspend or refused is not None
    goal = recorded or desired if stays else desired
    members = [w for w in observed.workers if w.standing in {Standing.OPEN, Standing.HELD}]
    joiners = [w for w in observed.workers if w.standing is Standing.CLOSED]
    behind = [m for m in members if not m.has_loaded(goal)]
    failed = [w for w in behind if calls.failure_of(w, goal)]
    problem: Problem | None = refused
    may_fail = rounded_down(settings.max_failures, observed.expected_workers)
    if problem is None and len(failed) > may_fail:
        problem = problem_of(failed, goal, RolloutPhase.STAGING, may_fail=may_fail, halt=False)
    asked = [*joiners] if stays else [*behind, *joiners]
    actions = [a for w in asked if (a := _next_call(w, weights, goal, settings)) is not None]
    done = len(members) - len(behind)
    share = counted_of(done, len(members), "worker", "serves", "serve")
    told = f"{share} {goal.version} of {weights.spec.adapter}"
    made = Step(
        goal=goal,
        phase=_phase(members, behind),
        actions=tuple(actions),
        note=f"{told}; next: {some(behind)}{unready(behind, goal)}" if behind else told,
        problem=problem,
        failed=names(failed),
    )
    watched = weights.watched.phase_seconds
    step = wait(made, asked, settings, phase=weights.status.phase, phase_seconds=watched)
    everybody = bool(members) and not behind
    return RolloutPlan(
        desired=desired,
        applied=goal,
        serving=goal.version if everybody else None,
        halted=False,
        suspended=weights.spec.suspend and not same_weights(goal, desired),
        step=step,
    )


def _is_new(desired: Target, recorded: Target | None) -> bool:
    return recorded is None or not same_weights(desired, recorded)


def with_adapters(
    base: Sequence[WorkerCall], observed: FleetObserved, plans: Mapping[str, RolloutPlan]
) -> list[WorkerCall]:
    """The calls of a step, one to each worker: those for the base weights come first."""
    chosen = {call.pod_uid: call for call in base}
    planned = [a for p in plans.values() for a in p.step.actions if not isinstance(a, Quarantine)]
    for call in (*planned, *_removals(observed)):
        chosen.setdefault(call.pod_uid, call)
    return list(chosen.values())


def seen_as(observed: FleetObserved, name: str) -> FleetObserved:
    """The fleet with the versions and failures of one adapter in place of the base weights'."""
    return replace(observed, workers=tuple(_seen_as(w, name) for w in observed.workers))


def _seen_as(worker: WorkerView, name: str) -> WorkerView:
    if worker.state is None:
        return worker
    held = worker.adapter(name)
    failure = worker.state.adapter_failure
    projected = {
        "version": held.version if held else None,
        "run_id": held.run_id if held else None,
        "digest": held.digest if held else None,
        "stage_failure": failure if failure and failure.name == name else None,
        "earlier_stage_failures": (),
        "load_failure": None,
        "staged": None,
        "timings": None,
    }
    return replace(worker, state=worker.state.model_copy(update=projected))


def _removals(observed: FleetObserved) -> list[WorkerCall]:
    """Adapters that workers have and no WeightVersion names, as far as all can be read."""
    if observed.is_external or observed.unread:
        return []
    wanted = {w.spec.adapter for w in observed.adapter_weights}
    return [
        calls.remove_adapter(worker, adapter.name)
        for worker in observed.workers
        if worker.state is not None and _listens(worker)
        for adapter in worker.state.adapters
        if adapter.version is not None and adapter.name not in wanted
    ]


def _next_call(
    worker: WorkerView, weights: WeightsView, goal: Target, settings: Rollout
) -> WorkerCall | None:
    if not _listens(worker):
        return None
    own, recorded = goal, recorded_of(weights)
    if recorded and worker.standing is Standing.CLOSED and calls.failed_lately(worker, own):
        own = recorded  # what the fleet served last lets it in, too
    if worker.has_loaded(own) or calls.failed_lately(worker, own):
        return None
    return calls.put_adapter(worker, weights.spec.adapter, own, settings)


def _listens(worker: WorkerView) -> bool:
    ready = worker.state is not None and worker.state.phase in {Phase.SERVING, Phase.JOINING}
    return ready and worker.takes_adapters and not worker.busy


def _phase(members: Collection[WorkerView], behind: Collection[WorkerView]) -> RolloutPhase:
    if not members:
        return RolloutPhase.PENDING
    return RolloutPhase.LOADING if behind else RolloutPhase.APPLIED
