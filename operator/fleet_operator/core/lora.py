"""LoRA adapters: which version of each adapter a fleet's workers should serve.

An adapter's rollout is planned like that of base weights: `as_seen_by_lora` puts the adapter's
versions and failures in the place of the base weights'.

No worker is paused: new requests get the new version, and running requests keep the one that they
began with. So all strategies share one plan: every worker updates at once, by itself. Its calls come from
the table of base weights (`advance`).

    worker serves or joins, has another version     StageLora
    its files are staged, their digest is pinned    PutLora
    worker refused the version                      PutLora again after 10 s; Stalled if more than
                                                    maxFailures workers refuse
    workers take too long, or have no slots         Stalled; the calls continue (`lora_problems`)
    no WeightVersion names an adapter it has        RemoveLora
    joins with other bytes than the pinned ones,    RemoveLora
    and no worker has served the adapter
    serves the goal, holds another staged version   StageLora of the goal, which drops the other

A joining worker is admitted when it has every adapter at the desired or at the applied version. An
adapter that no worker has served yet does not block it, and one that no WeightVersion steers goes
first. If a WeightVersion was created again, the version that the workers still serve counts as applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from fleet_operator.core import worker_failures
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.advance import Mode, Target, advance
from fleet_operator.core.apart import set_apart
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.comparison import compare_files, needs_comparison
from fleet_operator.core.dropped_pins import Bounded, within_bounds
from fleet_operator.core.facts import NO_WORKERS, Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.joining import own_goal
from fleet_operator.core.lora_goals import applied_lora
from fleet_operator.core.lora_leftovers import drops, removals
from fleet_operator.core.lora_pins import with_pins_of_lora
from fleet_operator.core.lora_problems import problem_of_lora
from fleet_operator.core.messages import pod_names, some, unready
from fleet_operator.core.missing_checkpoint import wait_for_source
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.permits import Situation, permitted
from fleet_operator.core.pins import Pins, pins_of
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.reused_versions import reuse_problem
from fleet_operator.core.rollback_guard import rollback_problem
from fleet_operator.core.rollout_plan import RolloutPlan, recorded_phase, rollout_seconds
from fleet_operator.core.staging import places_of
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.weight_roots import roots_problem
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import counted_of
from rlfleet_resources.fleet_status import PinnedAdapter
from rlfleet_resources.weights_status import RolloutPhase


def plan_lora(observed: FleetObserved, weights: WeightsView, *, now: datetime) -> RolloutPlan:
    """Decides the next step of one adapter's rollout. `observed`: from `as_seen_by_lora`."""
    recorded = applied_lora(observed, weights)
    known = [recorded] if recorded else []
    pins = pins_of(observed, known, weights.desired, adapter=weights.spec.adapter)
    refused = reuse_problem(weights.desired, known, pins)
    desired = replace(weights.desired, reused=True) if refused else pins.resolved(weights.desired)
    if recorded is not None:
        recorded = replace(pins.resolved(recorded), pinned=pins.of(recorded) is not None)
    desired = replace(desired, awaited=_is_new(desired, recorded))
    settings = weights.spec.rollout.over(observed.spec.rollout)
    if recorded is not None:
        refused = refused or rollback_problem(weights, recorded, pins)
    refused = refused or roots_problem(desired, observed)
    stays = weights.spec.suspend or refused is not None
    goal = recorded or desired if stays else desired
    members = observed.workers.where(lambda f: f.standing in {Standing.OPEN, Standing.HELD})
    joining = observed.workers.where(lambda f: f.standing is Standing.CLOSED)
    behind = members.where(lambda f: not f.has_loaded(goal))
    failed = [w for w in behind.where(lambda f: f.refuses) if worker_failures.failure_of(w, goal)]
    view = RolloutView(
        desired=desired,
        applied=recorded or desired,
        halted=False,
        suspended=weights.spec.suspend,
        settings=settings,
        members=members,
        joining=joining,
        forbids_mixing=False,
        replicas=observed.expected_workers,
        phase=recorded_phase(weights, desired),
        phase_seconds=weights.watched.phase_seconds,
        rollout_seconds=rollout_seconds(weights, desired, now),
        workers=observed.workers,
    )
    problem = refused or problem_of_lora(
        view, goal, recorded, behind=behind, failed=failed, update=observed.spec.update
    )
    asked = joining if stays else Workers((*behind, *joining))
    begun = recorded is not None or not stays
    if goal.reused or not begun:
        asked = NO_WORKERS
    wishes = _wishes(view, weights.spec.adapter, goal, recorded, asked, pins)
    done = len(members) - len(behind)
    share = counted_of(done, len(members), "worker", "serves", "serve")
    note = f"{share} version {goal.version} of adapter {weights.spec.adapter}"
    made = Step(
        goal=goal,
        phase=_phase(members, behind, is_pinned=pins.is_stored(goal)),
        actions=tuple(wishes),
        note=f"{note}; next: {some(behind)}{unready(behind, goal)}" if behind else note,
        problem=problem,
        failed=pod_names(failed),
    )
    unread = needs_comparison(weights, desired, pins)
    made, unread = compare_files(made, view, unread=unread, adapter=weights.spec.adapter)
    watched = weights.watched.phase_seconds
    made = wait_for_source(made, asked, settings, phase=weights.status.phase, phase_seconds=watched)
    made, _ = set_apart(made, view, pins)
    places = places_of(made.actions, observed.workers, view.max_staging)
    step, waits = permitted(made, Situation(goal=goal, pins=pins, places=places))
    all_serve = bool(members) and not behind
    return RolloutPlan(
        desired=desired,
        applied=goal,
        serving=goal.version if all_serve else None,
        halted=False,
        suspended=weights.spec.suspend and (not same_weights(goal, desired) or not all_serve),
        step=step,
        pinned=pins.entries,
        waits_for_pin=waits,
        files_unread=unread,
    )


def _is_new(desired: Checkpoint, recorded: Checkpoint | None) -> bool:
    return recorded is None or not same_weights(desired, recorded)


def calls(
    observed: FleetObserved, plans: Mapping[str, RolloutPlan]
) -> Iterator[Sequence[WorkerCall]]:
    """Returns the removals, which free slots and memory, then the calls of each plan, in the order of
    the plans, and then the calls that drop staged copies.
    """
    yield removals(observed)
    for plan in plans.values():
        yield [a for a in plan.step.actions if not isinstance(a, Quarantine)]
    for weights in observed.lora_weights:
        if weights.uid in plans:
            yield drops(observed, weights, plans[weights.uid])


def pinned_adapters(
    observed: FleetObserved, plans: Mapping[str, RolloutPlan]
) -> Bounded[PinnedAdapter]:
    """Returns the pins of all adapters for the status, newest first; pins in use stay.

    `plans`: by uid of their WeightVersion. Pins of other adapters stay, too: they may be published again.
    """
    planned = [(w, plans[w.uid]) for w in observed.lora_weights if w.uid in plans]
    pinned = [
        e if isinstance(e, PinnedAdapter) else PinnedAdapter(adapter=w.spec.adapter, **dict(e))
        for w, plan in planned
        for e in plan.pinned
    ]
    stored = observed.status.pinned_adapters
    twins = {e.model_copy(update={"same_as": None}): e for e in pinned if e.same_as is not None}
    before = tuple(twins.get(e, e) for e in stored) if twins else stored
    known = {(e.adapter, e.version, e.run_id) for e in stored}
    added = tuple(e for e in pinned if (e.adapter, e.version, e.run_id) not in known)
    if not added:
        return Bounded(before)
    used = {
        (w.spec.adapter, weights.version, weights.run_id)
        for w, plan in planned
        for weights in (plan.desired, plan.applied, applied_lora(observed, w))
        if weights is not None
    }
    return within_bounds(
        (*added, *before),
        lambda e: (e.adapter, e.version, e.run_id) in used,
        unread=observed.status.unread.count_in("pinnedAdapters"),
    )


def as_seen_by_lora(observed: FleetObserved, name: str) -> FleetObserved:
    """Returns the fleet with one adapter's versions, pins and failures in place of the base weights'."""
    seen = with_pins_of_lora(observed, name)
    return replace(seen, workers=Workers([_seen_as(w, name) for w in observed.workers]))


def _seen_as(worker: WorkerView, name: str) -> WorkerView:
    if worker.state is None:
        return worker
    adapters, failed = worker.state.adapters, worker.state.adapter_failures
    held = next((a for a in adapters if a.name == name), None) if adapters else None
    serves = held is not None and held.version is not None
    failures = tuple(f for f in failed if f.name == name) if failed else ()
    projected = {
        "version": held.version if held else None,
        "run_id": held.run_id if held and serves else None,
        "digest": held.digest if held and serves else None,
        "source": held.source if held and serves else None,
        "stage_failure": failures[0] if failures else None,
        "earlier_stage_failures": failures[1:],
        "load_failure": None,
        "staged": held.staged if held else None,
        "timings": None,
        "remarks": (),
    }
    unheeded = (u for u in worker.unheeded if u.work.adapter == name or u.work.kind == "fence")
    return worker.with_state(
        worker.state.model_copy(update=projected),
        tuple(u.of_base() for u in unheeded) if worker.unheeded else (),
    )


def _wishes(
    view: RolloutView,
    name: str,
    goal: Checkpoint,
    recorded: Checkpoint | None,
    asked: Workers,
    pins: Pins,
) -> Iterator[WorkerCall]:
    """The next calls to the workers asked. One that joins may have the applied version instead."""

    def calls(
        workers: Iterable[WorkerView], weights: Checkpoint, mode: Mode
    ) -> Sequence[WorkerCall]:
        reason = f"the goal of adapter {name} is version {weights.label}"
        needs_stage = not pins.is_stored(weights)
        target = Target(weights, mode, reason, adapter=name, needs_stage=needs_stage)
        return advance(Workers.of(workers), target, view.settings, renews=False)

    joining = asked.where(lambda f: f.standing is Standing.CLOSED)
    yield from calls(asked.where(lambda f: f.standing is not Standing.CLOSED), goal, Mode.SERVE)
    for worker in joining:
        own = own_goal(worker, goal, recorded or goal, may_keep=True)
        yield from calls([worker], own, Mode.KEEP)


def _phase(
    members: Collection[WorkerView], behind: Collection[WorkerView], *, is_pinned: bool
) -> RolloutPhase:
    if not members:
        return RolloutPhase.PENDING
    if not behind:
        return RolloutPhase.APPLIED
    return RolloutPhase.LOADING if is_pinned else RolloutPhase.STAGING
