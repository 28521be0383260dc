"""The views that the verbs print, computed from objects and a moment: pure, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rlfleet.metrics import lag_of
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet_resources.base import Resource
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import Laggard, ServedVersion, WorkerCounts

PHASES = ("Staging", "Pausing", "Loading", "Resuming")
"""Phases that workers pass through, in their order."""
HOLDING = PHASES[1:]
"""Phases in which workers hold requests."""


class PhaseView(Resource):
    """A phase of a rollout and its duration; until now, if it is `running`."""

    phase: str
    seconds: float
    running: bool


class RolloutView(Resource):
    """One WeightVersion at a glance.

    Fields:
        lag: versions between the applied and the desired one, where both are numbers of one run; negative
            while the fleet goes back to an older one.
        observed: the status is about the present spec.
        applied_age_seconds: since all workers hold the applied weights.
        phase_seconds: since the present phase began.
        pause_seconds: since workers hold their requests; None while they generate.
        longest_pause_seconds: of a worker in the last rollout.
        phases: those that workers pass through, in their order; of zero seconds until they begin.
        attention: its conditions that need it.
    """

    namespace: str
    name: str
    fleet: str
    adapter: str
    desired: str
    run_id: str | None
    applied: str | None
    lag: int | None
    observed: bool
    ready: str
    phase: str
    suspended: bool
    workers: str
    failed: int
    applied_age_seconds: float | None
    phase_seconds: float | None
    pause_seconds: float | None
    longest_pause_seconds: float
    superseded: int
    phases: tuple[PhaseView, ...]
    attention: tuple[Condition, ...]


class FleetView(Resource):
    """One fleet at a glance, with its rollouts; base weights come first.

    Fields:
        exists: false if WeightVersions name a fleet that is not there.
        desired: the version of its base weights, by its status.
    """

    namespace: str
    name: str
    exists: bool = True
    desired: str | None = None
    ready: str
    replicas: int
    workers: WorkerCounts
    versions: tuple[ServedVersion, ...]
    lagging: tuple[Laggard, ...]
    endpoint: str
    attention: tuple[Condition, ...]
    rollouts: tuple[RolloutView, ...]


def rollout_view(weights: WeightVersion, now: datetime) -> RolloutView:
    """A WeightVersion as the verbs show it."""
    spec, status = weights.spec, weights.status
    applied = status.applied
    ready = weights.condition("Ready")
    return RolloutView(
        namespace=weights.metadata.namespace,
        name=weights.metadata.name,
        fleet=spec.fleet_ref.name,
        adapter=spec.adapter,
        desired=spec.version,
        run_id=spec.run_id,
        applied=applied.version if applied else None,
        lag=lag_of(weights, spec.version),
        observed=weights.is_observed,
        ready=ready.status if ready and weights.is_observed else "Unknown",
        phase=status.phase,
        suspended=spec.suspend,
        workers=status.workers_applied,
        failed=status.workers.failed,
        applied_age_seconds=_since(applied.applied_at if applied else None, now),
        phase_seconds=_since(status.phase_started_at, now),
        pause_seconds=pause_seconds(weights, now),
        longest_pause_seconds=status.timings.max_worker_pause_seconds,
        superseded=status.superseded_versions,
        phases=_phases(weights, now),
        attention=attention(weights),
    )


def fleet_view(fleet: InferenceFleet, weights: Iterable[WeightVersion], now: datetime) -> FleetView:
    """A fleet as the verbs show it. `weights`: of any fleet."""
    own = [w for w in weights if _belongs(w, fleet)]
    status = fleet.status
    return FleetView(
        namespace=fleet.metadata.namespace,
        name=fleet.metadata.name,
        desired=status.desired_version,
        ready=next((c.status for c in status.conditions if c.type == "Ready"), "Unknown"),
        replicas=fleet.spec.replicas,
        workers=status.workers,
        versions=status.versions,
        lagging=status.laggards,
        endpoint=status.endpoint,
        attention=attention(fleet),
        rollouts=tuple(
            rollout_view(w, now)
            for w in sorted(own, key=lambda w: (w.spec.adapter, w.metadata.name))
        ),
    )


def orphan_views(
    fleets: Iterable[InferenceFleet], weights: Iterable[WeightVersion], now: datetime
) -> list[FleetView]:
    """The fleets that WeightVersions name and that do not exist."""
    there = {(fleet.metadata.namespace, fleet.metadata.name) for fleet in fleets}
    orphans: dict[tuple[str, str], list[RolloutView]] = {}
    for one in weights:
        named = (one.metadata.namespace, one.spec.fleet_ref.name)
        if named not in there:
            orphans.setdefault(named, []).append(rollout_view(one, now))
    return [
        FleetView(
            namespace=namespace,
            name=name,
            exists=False,
            ready="Unknown",
            replicas=0,
            workers=WorkerCounts(),
            versions=(),
            lagging=(),
            endpoint="",
            attention=(),
            rollouts=tuple(found),
        )
        for (namespace, name), found in orphans.items()
    ]


def troubles(found: Iterable[FleetView]) -> list[tuple[str, Condition]]:
    """The conditions that need attention, with the names of their objects.

    A fleet repeats the trouble of its rollouts in its own status; that is in the list once.
    """
    of_fleets, of_rollouts = list[tuple[str, Condition]](), list[tuple[str, Condition]]()
    for fleet in found:
        own = [(one.name, c) for one in fleet.rollouts for c in one.attention]
        known = {(c.type, c.reason, c.message) for _, c in own}
        of_rollouts += own
        of_fleets += [
            (f"fleet {fleet.name}", c)
            for c in fleet.attention
            if (c.type, c.reason, c.message) not in known
        ]
    return [*of_fleets, *of_rollouts]


def pause_seconds(weights: WeightVersion, now: datetime) -> float | None:
    """How long workers have held their requests; None while they generate.

    The clock starts with the phase Pausing. Later phases add the durations of the finished ones.
    """
    status = weights.status
    if status.phase not in HOLDING or not status.workers.paused:
        return None
    finished = (status.timings.pause_seconds, status.timings.load_seconds)
    earlier = sum(finished[: HOLDING.index(status.phase)])
    return (_since(status.phase_started_at, now) or 0.0) + earlier


def _phases(weights: WeightVersion, now: datetime) -> tuple[PhaseView, ...]:
    status, timings = weights.status, weights.status.timings
    lengths = (
        timings.stage_seconds,
        timings.pause_seconds,
        timings.load_seconds,
        timings.resume_seconds,
    )
    present = status.phase if weights.is_observed else ""
    since = _since(status.phase_started_at, now) or 0.0
    return tuple(
        PhaseView(
            phase=phase,
            seconds=max(length, since) if phase == present else length,
            running=phase == present,
        )
        for phase, length in zip(PHASES, lengths, strict=True)
    )


def _belongs(weights: WeightVersion, fleet: InferenceFleet) -> bool:
    there = (weights.metadata.namespace, weights.spec.fleet_ref.name)
    return there == (fleet.metadata.namespace, fleet.metadata.name)


def attention(of: InferenceFleet | WeightVersion) -> tuple[Condition, ...]:
    """The conditions of an object that need attention.

    A fleet of no replicas need not be available, and its router cannot be. Of one that is not available, either
    `Stalled` or `Ready` has the cause.
    """
    wanted = {("Stalled", "True"), ("Stale", "True"), ("WeightsUnchanged", "True")}
    has = {(c.type, c.status) for c in of.status.conditions}
    if isinstance(of, InferenceFleet) and of.spec.replicas:
        wanted |= {("Available", "False"), ("RouterAvailable", "False")}
        if ("Available", "False") in has and ("Stalled", "True") not in has:
            wanted.add(("Ready", "False"))
    return tuple(c for c in of.status.conditions if (c.type, c.status) in wanted)


def named(condition: Condition) -> str:
    """A condition in words: `Stalled`, `not Available`."""
    return condition.type if condition.status == "True" else f"not {condition.type}"


def _since(moment: datetime | None, now: datetime) -> float | None:
    """Seconds; never negative, since clocks differ."""
    return None if moment is None else max(0.0, (now - moment).total_seconds())
