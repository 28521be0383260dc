"""Computes the status of an InferenceFleet from one observation."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from math import inf

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.condition_rows import Made, Row, conditions_of, first_of
from fleet_operator.core.dropped_pins import Bounded
from fleet_operator.core.facts import Workers
from fleet_operator.core.fleet_plan import FleetPlan
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.lagging import lagging_workers
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import unavailable_and_surge
from fleet_operator.core.pod_problems import (
    Missing,
    cannot_run,
    missing_workers,
    named_wait,
    of_another_release,
    will_not_go,
)
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.staleness import stale
from fleet_operator.core.weights_in_use import (
    applied_record,
    memory_of,
    sources_in_use,
    versions_of,
)
from fleet_operator.core.worker_view import Standing
from fleet_operator.counts import agree, counted, counted_of
from fleet_worker.protocol import Phase
from rlfleet_resources import names
from rlfleet_resources.base import renewed
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import (
    FleetStatus,
    PinnedAdapter,
    RouterStatus,
    ServedVersion,
    WorkerCounts,
)
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

_NO_PINS: Bounded[PinnedAdapter] = Bounded(())


def fleet_status(
    observed: FleetObserved,
    rollout: RolloutPlan,
    pods: FleetPlan,
    *,
    pinned_adapters: Bounded[PinnedAdapter] = _NO_PINS,
    now: datetime,
) -> FleetStatus:
    """Returns the status of the fleet. `pinned_adapters`: the pins of its adapters."""
    live = observed.workers.where(lambda f: not f.pod.deleting)
    versions, missing = versions_of(observed), missing_workers(observed)
    port, scheme = observed.spec.serving.port, observed.spec.engine.scheme
    conditions = _conditions(observed, rollout, pods, versions, missing, now)
    ready = condition_of(conditions, ConditionType.READY)
    return renewed(
        observed.status,
        observed_generation=observed.generation,
        operator=observed.operator,
        replicas=len(live),
        ready_replicas=live.count(lambda f: f.pod.ready),
        updated_replicas=live.count(lambda f: f.pod.revision == pods.revision),
        selector=names.fleet_selector(observed.name),
        desired_version=rollout.desired.version,
        desired_run_id=rollout.desired.run_id,
        applied_version=rollout.serving,
        applied=applied_record(rollout, observed.status.applied, now=now),
        transition=rollout.transition,
        versions=versions,
        sources_in_use=sources_in_use(observed, rollout),
        pinned=rollout.pinned,
        pinned_adapters=pinned_adapters.kept,
        dropped_pins=memory_of(observed, rollout, (*rollout.dropped, *pinned_adapters.dropped)),
        workers=_counts(live, observed.status.workers),
        laggards=lagging_workers(
            observed, rollout.desired, observed.status.laggards, goal=rollout.step.goal
        ),
        recycled=pods.recycled,
        endpoint=names.endpoint_url(observed.name, observed.namespace, port, scheme),
        router=_router(observed),
        waiting_for=named_wait(
            observed.status.waiting_for, missing, ready.reason if ready is not None else None
        ),
        conditions=conditions,
    )


def serving_count(observed: FleetObserved, weights: Checkpoint) -> int:
    """Returns how many workers generate with these weights, for certain.

    A phase of a newer release may be a swap: such a worker still names its old weights, and does not
    count.
    """
    generating = observed.workers.where(
        lambda f: f.standing is Standing.OPEN and isinstance(f.phase, Phase)
    )
    return generating.count(lambda f: f.has_loaded(weights))


def unseen_workers(observed: FleetObserved, missing: Missing, share: str) -> Row:
    """Returns the row of workers that generate but get no clients yet: the Service follows the kubelet's
    probe, which notices an admission a second later. That of a lost node notices nothing.
    """
    unseen = observed.workers.count(lambda f: f.standing is Standing.OPEN and not f.pod.ready)
    if not unseen:
        return False, False, ConditionReason.WAITING_FOR_WORKERS, ""
    to_come = f"{share}; {unseen} {agree(unseen, 'is', 'are')} not in the Service yet"
    message = "; ".join(filter(None, (to_come, missing.message)))
    return unseen, False, missing.reason, message


def _counts(live: Workers, before: WorkerCounts) -> WorkerCounts:
    phases: Counter[str | None] = Counter()
    for worker, number in live.kinds.items():
        if worker.standing is not Standing.ABSENT:
            phases[worker.phase] += number
    return renewed(
        before,
        total=len(live),
        serving=phases[Phase.SERVING],
        joining=phases[Phase.JOINING] + phases[Phase.STARTING],
        staging=live.count(lambda f: f.is_doing("stage")),
        paused=phases[Phase.PAUSED] + phases[Phase.PAUSING],
        loading=phases[Phase.LOADING],
        broken=phases[Phase.BROKEN],
        quarantined=live.count(lambda f: f.pod.quarantined),
    )


def _conditions(
    observed: FleetObserved,
    rollout: RolloutPlan,
    pods: FleetPlan,
    versions: tuple[ServedVersion, ...],
    missing: Missing,
    now: datetime,
) -> tuple[Condition, ...]:
    failing = cannot_run(observed, now)
    serving = serving_count(observed, rollout.desired)
    stalled = _stalled(observed, rollout, pods, failing or will_not_go(observed, now))
    made = (
        _as_stalled(_ready(observed, rollout, pods, missing, serving), stalled),
        _available(observed, rollout),
        _progressing(observed, rollout, pods, missing, serving, failing),
        stalled,
        stale(observed, rollout.desired, versions, now=now),
        _update_available(observed, pods),
        _router_available(observed),
    )
    before = observed.status.conditions
    return conditions_of(made, before, generation=observed.generation, now=now)


def _as_stalled(ready: Made | None, stalled: Made | None) -> Made | None:
    """A false `Ready` with the reason and the message of `Stalled`: `kubectl get` shows those of `Ready`."""
    if ready is None or stalled is None or ready[1]:
        return ready
    return ready[0], False, stalled[2], stalled[3]


def _ready(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, missing: Missing, serving: int
) -> Made | None:
    replicas, desired = observed.spec.replicas, rollout.desired
    share = f"{counted_of(serving, replicas, 'worker', 'serves', 'serve')} version {desired.label}"
    problem = rollout.step.problem
    rolling = rollout.step.phase not in {RolloutPhase.APPLIED, RolloutPhase.PENDING}
    to_replace = 0 if observed.spec.update.is_held else pods.outdated
    changes = serving < replicas or to_replace or len(observed.workers) > replicas
    because = problem.reason if problem else ConditionReason.HALTED
    abandoned = f"{share}; version {desired.label} was abandoned"
    waits = f"{share}; {rollout.step.told}"
    return first_of(
        ConditionType.READY,
        (replicas == 0, False, ConditionReason.NO_WORKERS, "replicas is 0"),
        (pods.problem, False, ConditionReason.INVALID_SPEC, f"{share}; {pods.problem}"),
        (rollout.halted, False, ConditionReason.HALTED, abandoned),
        (rollout.suspended, False, ConditionReason.SUSPENDED, share),
        (problem, False, because, share),
        (rolling, False, ConditionReason.ROLLING_OUT, _rolling(rollout)),
        (rollout.step.awaits_source, False, ConditionReason.WAITING_FOR_CHECKPOINT, waits),
        (changes, False, missing.reason, with_waits(share, missing, rollout)),
        unseen_workers(observed, missing, share),
        (True, True, ConditionReason.ALL_WORKERS_SERVING, share),
    )


def _available(observed: FleetObserved, rollout: RolloutPlan) -> Made | None:
    # A pause does not make a fleet unavailable while it is as short as that of one version may be. A trainer that
    # steers the workers holds them for as long as it likes. Two versions at once do not matter either where the
    # strategy allows them. Workers may then still serve a version that was superseded on the way.
    served = {WeightsId.of(weights) for weights in rollout.on_its_way}
    in_service = {Standing.OPEN, Standing.HELD}
    up = observed.workers.where(lambda f: f.standing in in_service and f.admitted)
    # While requests are held, workers wait with weights of both sides of the swap.
    any_weights = rollout.allows_mixing or rollout.step.holds_requests
    members = up.where(lambda f: any_weights or any(f.has_loaded(s) for s in served))
    weights, settings = observed.base_weights, observed.spec.rollout
    settings = weights.spec.rollout.over(settings) if weights is not None else settings
    long = inf if observed.is_external else settings.hold_seconds
    held = members.where(lambda f: f.phase is not Phase.SERVING)  # or one of a newer release
    able = len(members) - len([w for w in held if w.held_seconds > long])
    unavailable, _ = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    least = max(1, observed.spec.replicas - unavailable)
    what = "" if rollout.allows_mixing else f" version {rollout.applied.label}"
    serve = agree(able, "serves", "serve")
    message = f"{counted(able, 'worker')} {serve}{what}; at least {least} must"
    return first_of(
        ConditionType.AVAILABLE,
        (able >= least, True, ConditionReason.MINIMUM_SERVING, _minimum(least)),
        (able == 0, False, ConditionReason.NO_WORKERS, message),
        (True, False, ConditionReason.BELOW_MINIMUM, message),
    )


def _router(observed: FleetObserved) -> RouterStatus | None:
    if observed.spec.router is None:
        return None
    name = names.router_name(observed.name)
    return renewed(
        observed.status.router or RouterStatus(),
        replicas=observed.spec.router.replicas,
        ready_replicas=observed.router.ready_replicas,
        endpoint=names.endpoint_url(name, observed.namespace, observed.spec.serving.port),
    )


def _router_available(observed: FleetObserved) -> Made | None:
    if observed.spec.router is None:
        return None
    ready, replicas = observed.router.ready_replicas, observed.spec.router.replicas
    share = counted_of(ready, replicas, "router replica", "is ready", "are ready")
    because = f": {observed.router.problem}" if observed.router.problem else ""
    remedy = f"See the pods of Deployment {names.router_name(observed.name)}"
    if observed.spec.engine.scheme == "https":
        because = ": a router reaches workers over HTTP only, and they serve HTTPS"
        remedy = "Remove spec.router, or --ssl-certfile from spec.engine.args"
    return first_of(
        ConditionType.ROUTER_AVAILABLE,
        (ready, True, ConditionReason.ROUTER_READY, share),
        (True, False, ConditionReason.ROUTER_NOT_READY, f"{share}{because}. {remedy}"),
    )


def _update_available(observed: FleetObserved, pods: FleetPlan) -> Made | None:
    update, outdated = observed.spec.update, pods.outdated
    by_deletion = update.type == "OnDelete"
    reason, messages = ConditionReason.NEW_TEMPLATE, list[str]()
    if update.is_held and outdated:
        reason = ConditionReason.UPDATE_HELD
        on_delete = f"Delete {agree(outdated, 'its pod', 'their pods')}"
        remedy = on_delete if by_deletion else "Set spec.update.paused to false"
        workers = f"{counted(outdated, 'worker')} {agree(outdated, 'has', 'have')}"
        them = agree(outdated, "it", "them")
        messages.append(f"{workers} an older template of the spec. {remedy} to replace {them}")
    if pods.update:
        remedy = "set spec.update.restartedAt to a new value"
        if update.is_held:
            remedy += (
                ", and delete the pods," if by_deletion else " and spec.update.paused to false"
            )
        messages.append(f"{pods.update}. No worker is replaced for it: {remedy} to replace all")
    if not messages:
        return None
    return ConditionType.UPDATE_AVAILABLE, True, reason, ". ".join(messages)


def _minimum(least: int) -> str:
    return f"at least {counted(least, 'worker')} {agree(least, 'serves', 'serve')}"


def _progressing(
    observed: FleetObserved,
    rollout: RolloutPlan,
    pods: FleetPlan,
    missing: Missing,
    serving: int,
    failing: str,
) -> Made | None:
    problem, desired, replicas = rollout.step.problem, rollout.desired, observed.spec.replicas
    rolling = ROLLING_REASONS.get(rollout.step.phase) if problem is None else None
    to_replace = 0 if observed.spec.update.is_held else pods.outdated
    replaces = pods.actions or to_replace or len(observed.workers) != replicas
    existing = f"{counted(len(observed.workers), 'pod')} for {counted(replicas, 'replica')}"
    pods_note = f"{existing}, {pods.outdated} outdated"
    because = problem.reason if problem else ConditionReason.HALTED
    share = counted_of(serving, replicas, "worker", "serves", "serve")
    state = with_waits(f"{share} version {desired.label}", missing, rollout)
    waits, note = rollout.step.awaits_source, rollout.step.told
    unseen, _, because_unseen, to_come = unseen_workers(observed, missing, share)
    return first_of(
        ConditionType.PROGRESSING,
        (rolling, True, rolling or ConditionReason.ROLLING_OUT, _rolling(rollout)),
        (replaces, True, ConditionReason.REPLACING_WORKERS, pods_note),
        (problem, False, because, state),
        (rollout.halted, False, ConditionReason.HALTED, state),
        (rollout.suspended, False, ConditionReason.SUSPENDED, state),
        (failing, False, ConditionReason.WORKERS_FAILING, failing),
        (waits, True, ConditionReason.WAITING_FOR_CHECKPOINT, note),
        (serving < replicas, True, missing.reason, state),
        (unseen, True, because_unseen, to_come),
        (True, False, ConditionReason.UP_TO_DATE, "the fleet is up to date"),
    )


ROLLING_REASONS = {
    RolloutPhase.COMPARING: ConditionReason.COMPARING,
    RolloutPhase.JUDGING: ConditionReason.JUDGING,
    RolloutPhase.STAGING: ConditionReason.STAGING,
    RolloutPhase.PAUSING: ConditionReason.PAUSING,
    RolloutPhase.LOADING: ConditionReason.LOADING,
    RolloutPhase.RESUMING: ConditionReason.RESUMING,
}


def _stalled(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, failing: str
) -> Made | None:
    problem, steering = rollout.step.problem, observed.base_weights
    because = problem.reason if problem else ConditionReason.HALTED
    message = problem.message if problem else ""
    no_pods = (
        f"{pods.problem}. Existing workers stay, and no pod is created until the spec is repaired"
    )
    # Before the problem, since it may be its cause.
    mismatch = of_another_release(observed)
    both = f"{mismatch}. {because}: {message}" if problem else mismatch
    name = steering.name if steering else ""
    abandoned = f"the rollout was abandoned: see Stalled of WeightVersion {name}"
    return first_of(
        ConditionType.STALLED,
        (pods.problem, True, ConditionReason.INVALID_SPEC, no_pods),
        (mismatch, True, ConditionReason.PROTOCOL_MISMATCH, both),
        (problem, True, because, message),
        (rollout.halted and steering, True, ConditionReason.HALTED, abandoned),
        (pods.exhausted, True, ConditionReason.FAILURE_BUDGET_EXCEEDED, pods.exhausted),
        (failing, True, ConditionReason.WORKERS_FAILING, failing),
    )


def with_waits(message: str, missing: Missing, rollout: RolloutPlan) -> str:
    """Returns the message, what workers wait for, and what their pods wait for."""
    return "; ".join(filter(None, (rollout.step.with_waiting(message), missing.message)))


def _rolling(rollout: RolloutPlan) -> str:
    return f"version {rollout.step.goal.label}: {rollout.step.told}"
