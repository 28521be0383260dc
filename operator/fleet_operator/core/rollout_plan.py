"""Plans the rollout of a fleet: the desired and applied weights, and the next step.

`wished_rollout` has the wishes of the strategy. The plan of the pods depends on it. `plan_rollout` sets apart the
workers that must be out of service (`apart`), and keeps the calls that are permitted (`permits`).

No plan stores state. The desired weights come from the WeightVersion. The applied weights and the operation
in progress come from the fleet's status. The status of the WeightVersion records the phase, and whether a generation was halted. The duration
of the phase is the time that this leader has seen (`Watched`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime

from fleet_operator.core.apart import set_apart
from fleet_operator.core.applied import applied_after, applied_of, served_last
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.comparison import compare_files, needs_comparison
from fleet_operator.core.dropped_pins import Bounded
from fleet_operator.core.external_pins import external_pins_of, is_reused, reused_by_trainer
from fleet_operator.core.facts import Workers
from fleet_operator.core.lora_goals import joiners_lora_of
from fleet_operator.core.messages import peers_told
from fleet_operator.core.missing_checkpoint import mark_awaited, wait_for_source
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.peers import PeerPlan, with_peers
from fleet_operator.core.permits import Situation, permitted
from fleet_operator.core.pins import Pins, pins_of, served_by
from fleet_operator.core.reused_versions import reuse_problem
from fleet_operator.core.rollback_guard import rollback_problem
from fleet_operator.core.staging import places_of
from fleet_operator.core.staleness import unaware_of
from fleet_operator.core.strategies import external
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.strategies.choice import strategy_of
from fleet_operator.core.strategies.trials import Trial, trials_of
from fleet_operator.core.transition import named_in, open_transition, transition_after
from fleet_operator.core.weight_roots import roots_problem
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.fleet_status import PinnedWeights, Transition
from rlfleet_resources.weights_status import RolloutPhase

_MEMBERS = frozenset({Standing.OPEN, Standing.HELD, Standing.UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The step that a fleet's rollout takes now.

    Fields:
        desired: the weights of the spec; the applied weights without a WeightVersion.
        applied: the weights that all workers served last; joining workers load these.
        serving: the version that every member has loaded, also one that holds its requests or does not
            answer; None while they differ, or without a member.
        halted: the desired version was abandoned in this generation.
        suspended: `spec.suspend` holds the rollout back.
        pinned: the pins of versions, for the status.
        dropped: those that the status has no room for any more.
        transition: the operation in progress, for the status.
        waits_for_pin: calls wait until the pins and the transition are stored.
        allows_mixing: two versions may serve at once.
        files_unread: the files of the desired version have yet to be compared with their digest.
    """

    desired: Checkpoint
    applied: Checkpoint
    serving: str | None
    halted: bool
    suspended: bool
    step: Step
    pinned: tuple[PinnedWeights, ...] = ()
    dropped: tuple[PinnedWeights, ...] = ()
    waits_for_pin: bool = False
    allows_mixing: bool = False
    files_unread: bool = False
    transition: Transition | None = None

    @property
    def on_its_way(self) -> tuple[Checkpoint, ...]:
        """The weights that workers may have now."""
        known = (self.applied, self.step.goal, self.desired)
        return known if self.transition is None else (*known, Checkpoint.recorded(self.transition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """The wishes of a strategy.

    Fields:
        step: with calls that are not permitted yet; the last one for a worker is the best.
        external: the pins of an External fleet.
    """

    view: RolloutView
    step: Step
    pins: Pins = field(default_factory=Pins)
    halted: bool = False
    files_unread: bool = False
    external: Bounded[PinnedWeights] | None = None


def wished_rollout(observed: FleetObserved, *, now: datetime) -> Wished:
    """Lets the strategy of the fleet wish its calls."""
    if observed.is_external:
        return _wished_by_trainer(observed, now)
    weights = observed.base_weights
    wanted = weights.desired if weights else None
    known = served_by(observed)
    pins = pins_of(observed, known, wanted, start=known[0])
    reuse = reuse_problem(wanted, known, pins) if wanted else None
    if wanted is not None:
        wanted = replace(wanted, reused=True) if reuse else pins.resolved(wanted)
    outside = roots_problem(wanted, observed) if wanted else None
    view = _view(observed, weights, wanted, pins, now, may_read_wanted=outside is None)
    strategy = strategy_of(view)
    unread = needs_comparison(weights, view.desired, pins)
    refused = reuse or (rollback_problem(weights, view.applied, pins) if weights else None)
    refused = refused or outside
    if refused is not None:
        step = replace(strategy(replace(view, desired=view.applied)), problem=refused)
        # A refusal that ends does not bring an abandoned version back.
        return Wished(view=view, step=step, pins=pins, halted=view.halted, files_unread=unread)
    step, unread = compare_files(_waiting(strategy(view), view), view, unread=unread)
    halted = view.halted
    if step.problem is not None and step.problem.halt:
        # The rollback begins with this decision, so that no worker is late yet.
        back = strategy(replace(view, halted=True, phase=RolloutPhase.HALTED))
        step = replace(back, problem=step.problem, failed=step.failed, verdict=step.verdict)
        halted = True
    return Wished(view=view, step=step, pins=pins, halted=halted, files_unread=unread)


def _wished_by_trainer(observed: FleetObserved, now: datetime) -> Wished:
    """The wishes for a fleet whose trainer drives the workers."""
    bounded = external_pins_of(observed)
    pinned = bounded.kept
    view = _view(observed, None, None, Pins(), now)
    sent = external.sent_to_all(view, observed.spec.model.version)
    if sent is not None and not is_reused(sent, pinned):
        view = replace(view, applied=sent, desired=sent)
    common = external.majority(view)
    stay = common is None or is_reused(common, pinned)
    problem = reused_by_trainer(view.members, pinned, stay=stay)
    if problem is not None and stay:
        last = served_last(observed)
        view = replace(view, applied=last, desired=last)
        step = Step(
            goal=last,
            phase=RolloutPhase.APPLIED,
            note="a version was reused",
            problem=problem,
            holds_requests=common is None or bool(view.held),
        )
    else:
        step = external.step(view)
        step = replace(step, problem=problem or step.problem)
    return Wished(view=view, step=step, external=bounded)


def _waiting(step: Step, view: RolloutView) -> Step:
    return wait_for_source(
        step,
        view.there,
        view.settings,
        phase=view.phase,
        phase_seconds=view.phase_seconds,
    )


def _view(
    observed: FleetObserved,
    weights: WeightsView | None,
    wanted: Checkpoint | None,
    pins: Pins,
    now: datetime,
    *,
    may_read_wanted: bool = True,
) -> RolloutView:
    members = observed.workers.where(lambda f: f.standing in _MEMBERS)
    settings = observed.spec.rollout
    if weights is not None:
        settings = weights.spec.rollout.over(settings)
    transition = open_transition(observed)
    last = settings.canary.then if settings.strategy == "Canary" else settings.strategy
    strategy = transition.strategy if transition is not None else last
    found = applied_of(observed, members, wanted, may_read_wanted=may_read_wanted)
    applied = pins.resolved(found)
    if wanted is not None and not wanted.reused and not observed.is_external:
        seen = pins.of(wanted) is not None
        wanted = mark_awaited(wanted, applied, observed.workers, seen=seen)
    return RolloutView(
        desired=wanted or applied,
        applied=applied,
        halted=weights is not None and is_halted(weights),
        suspended=weights is not None and weights.spec.suspend,
        settings=settings,
        members=members,
        joining=observed.workers.where(lambda f: f.standing is Standing.CLOSED),
        forbids_mixing=strategy == "Synchronized" and not observed.is_external,
        replicas=observed.expected_workers,
        phase=recorded_phase(weights, wanted),
        phase_seconds=weights.watched.phase_seconds if weights else 0,
        rollout_seconds=rollout_seconds(weights, wanted, now),
        verdict=weights.status.canary if weights else None,
        trials=_trials(observed, weights, wanted, now),
        lora_goals=joiners_lora_of(observed),
        workers=observed.workers,
        strategy=strategy,
        transition=transition,
        reads_from_peers=observed.spec.weights.peers.enabled,
        clock_seconds=observed.clock_seconds,
    )


def plan_rollout(
    observed: FleetObserved,
    *,
    now: datetime,
    wished: Wished | None = None,
    drain_begins: bool = False,
) -> RolloutPlan:
    """Decides the next step of the fleet's rollout. `drain_begins`: of another worker."""
    wished = wished or wished_rollout(observed, now=now)
    view, pins, halted, external = wished.view, wished.pins, wished.halted, wished.external
    step, others = set_apart(wished.step, view, pins, limits_holds=not observed.is_external)
    peers = PeerPlan()
    if view.reads_from_peers:
        workers = tuple(view.workers)
        actions, peers = with_peers(step.actions, workers, observed.spec.weights.peers)
        note = "; ".join(filter(None, (step.note, peers_told(workers))))
        step = replace(step, actions=actions, note=note)
    transition, is_recorded = transition_after(step, observed, view, halted=halted, now=now)
    situation = Situation(
        goal=step.goal,
        named=named_in(observed.stored_status),
        held={w.pod.uid for w in view.held},
        drain_begins=drain_begins,
        others=others,
        is_recorded=is_recorded,
        pins=pins,
        places=places_of(
            step.actions,
            view.workers,
            view.max_staging,
            of_zone=peers.store_readers,
            waiting=peers.waiting,
        ),
        unaware=unaware_of(observed),
    )
    step, waits = permitted(step, situation)
    behind = view.members.any(
        lambda f: not f.has_loaded(view.desired) or f.loads_others_than(view.desired)
    )
    applied = applied_after(step, view, transition)
    in_order = pins.in_order_of_use(applied, observed.status.applied)
    return RolloutPlan(
        desired=view.desired,
        applied=applied,
        serving=_serving(view.members, applied),
        halted=halted,
        suspended=view.suspended and behind and not step.holds_requests,
        step=step,
        pinned=in_order if external is None else external.kept,
        dropped=pins.dropped if external is None else external.dropped,
        waits_for_pin=waits,
        allows_mixing=not view.forbids_mixing and not observed.is_external,
        files_unread=wished.files_unread,
        transition=transition,
    )


def is_halted(weights: WeightsView) -> bool:
    """Whether this generation was abandoned, without a request to retry since then."""
    status = weights.status
    is_current = (status.observed_generation, status.retried) == (weights.generation, weights.retry)
    return status.phase is RolloutPhase.HALTED and is_current


def _serving(members: Workers, applied: Checkpoint) -> str | None:
    all_have_it = bool(members) and members.all(lambda f: f.has_loaded(applied))
    return applied.version if all_have_it else None


def recorded_phase(weights: WeightsView | None, wanted: Checkpoint | None) -> RolloutPhase:
    """Returns the phase of the last status, if that is about the wanted weights."""
    if weights is None or wanted is None or not _knows(weights, wanted):
        return RolloutPhase.PENDING
    return weights.status.phase


def _knows(weights: WeightsView, wanted: Checkpoint) -> bool:
    """Whether the last status of a WeightVersion is about its desired weights."""
    return weights.status.is_about(wanted.version, wanted.run_id)


def _trials(
    observed: FleetObserved,
    weights: WeightsView | None,
    wanted: Checkpoint | None,
    now: datetime,
) -> tuple[Trial, ...]:
    """The trials of this attempt at the wanted weights."""
    if weights is None or wanted is None or not _knows(weights, wanted):
        return ()
    if weights.status.retried != weights.retry:
        return ()
    return trials_of(weights.status.canaries, observed.workers, weights.watched, now)


def rollout_seconds(weights: WeightsView | None, wanted: Checkpoint | None, now: datetime) -> float:
    """Returns how long the attempt to roll out the wanted weights has lasted."""
    if weights is None or wanted is None:
        return math.inf
    status, watched = weights.status, weights.watched
    if not status.is_about(wanted.version, wanted.run_id) or status.retried != weights.retry:
        return 0
    if watched.saw_it_begin or status.started_at is None:
        return watched.attempt_seconds
    # Failures under a former leader count, by the clock of the leader that began the attempt.
    return max(watched.seconds_since(status.started_at, now), watched.attempt_seconds)
