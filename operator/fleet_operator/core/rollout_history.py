"""When a rollout began and ended, how long its phases took, and which ones came before."""

from __future__ import annotations

from datetime import datetime

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.problems import alone
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_worker.protocol import SwapTimings
from rlfleet_resources.conditions import MAX_MESSAGE_CHARACTERS, condition_of, shortened
from rlfleet_resources.reasons import ConditionType, Severity
from rlfleet_resources.weights_status import (
    MAX_HISTORY,
    HistoryEntry,
    RolloutPhase,
    RolloutTimings,
    StoreReads,
    WeightsStatus,
)

_TIMED = {
    RolloutPhase.STAGING: "stage_seconds",
    RolloutPhase.PAUSING: "pause_seconds",
    RolloutPhase.LOADING: "load_seconds",
    RolloutPhase.RESUMING: "resume_seconds",
}


def _has_ended(before: WeightsStatus, started_at: datetime | None) -> bool:
    """Whether the history has the rollout that began then. Later events are not part of it."""
    begun = (before.desired_version, before.desired_run_id, started_at)
    return any((e.version, e.run_id, e.started_at) == begun for e in before.history)


def replaced(weights: WeightsView, rollout: RolloutPlan, *, now: datetime) -> HistoryEntry | None:
    """The rollout of the last status, if another version has replaced it before it ended."""
    before = weights.status
    begun = before.desired_version is not None and before.started_at is not None
    another = not before.is_about(rollout.desired.version, rollout.desired.run_id)
    if not (begun and another) or _has_ended(before, before.started_at):
        return None
    stalled = condition_of(before.conditions, ConditionType.STALLED)
    why = stalled or condition_of(before.conditions, ConditionType.READY)
    refused = stalled is not None and stalled.reason.severity is Severity.REFUSES
    message = alone(why).message if why is not None else ""
    by = f" of writer {weights.requested_by}" if weights.requested_by else ""
    after = "" if refused else f"; then version {rollout.desired.label}{by} replaced it in the spec"
    return HistoryEntry(
        version=str(before.desired_version),
        run_id=before.desired_run_id,
        result="Refused" if refused else "Superseded",
        started_at=before.started_at or now,
        total_seconds=round(weights.watched.seconds_since(before.started_at or now, now), 3),
        reason=why.reason if why is not None else "",
        message=shortened(message, MAX_MESSAGE_CHARACTERS - len(after)) + after,
        requested_by=before.requested_by,
    )


def timings_of(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    *,
    fresh: bool,
    now: datetime,
) -> RolloutTimings:
    """Returns how long the phases took so far. Nothing is added after the rollout has ended."""
    if fresh:
        return RolloutTimings()
    before, watched = weights.status, weights.watched
    timings = before.timings
    if _has_ended(before, before.started_at):
        return timings
    if phase is not before.phase and before.phase in _TIMED and before.phase_started_at:
        field = _TIMED[before.phase]
        spent = getattr(timings, field) + watched.seconds_since(before.phase_started_at, now)
        timings = timings.model_copy(update={field: round(spent, 3)})
    if phase is RolloutPhase.APPLIED and before.phase is not phase and before.started_at:
        total = watched.seconds_since(before.started_at, now)
        swaps = _swaps(observed, rollout.desired)
        pauses = [swap.paused_seconds or 0.0 for swap in swaps]
        held = [swap.requests_held or 0 for swap in swaps]
        timings = timings.model_copy(
            update={
                "total_seconds": round(total, 3),
                "max_worker_pause_seconds": round(max(pauses, default=0.0), 3),
                "lost_worker_seconds": round(sum(pauses), 3),
                "held_requests": sum(held),
            }
        )
    return timings


def _swaps(observed: FleetObserved, weights: Checkpoint) -> list[SwapTimings]:
    """Returns the swaps to these weights. A worker names the version of its last swap, without its run."""
    return [
        w.state.timings
        for w in observed.workers.where(lambda f: f.has_loaded(weights))
        if w.state and w.state.timings and w.state.timings.version == weights.version
    ]


def store_reads_of(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    *,
    fresh: bool,
) -> StoreReads | None:
    """Returns the reads from the store and from peers, counted when the version is applied."""
    before = None if fresh else weights.status.store_reads
    if phase is not RolloutPhase.APPLIED or weights.status.phase is phase:
        return before
    timings = _swaps(observed, rollout.desired)
    read = [(t.read_bytes, t.peer_bytes or 0) for t in timings if t.read_bytes is not None]
    if not read:
        return before
    published, size = max((t.published_bytes or 0, t.size_bytes or 0) for t in timings)
    by_peers = sum(1 for _, from_peer in read if from_peer)
    return StoreReads(
        bytes=sum(from_store for from_store, _ in read),
        workers=len(read) - by_peers,
        peer_bytes=sum(from_peer for _, from_peer in read),
        peer_workers=by_peers,
        published_bytes=published,
        size_bytes=size if published else 0,
    )


def history_of(
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    *,
    timings: RolloutTimings,
    started_at: datetime,
    requested_by: str,
    other: HistoryEntry | None,
    now: datetime,
) -> tuple[HistoryEntry, ...]:
    """Returns the ended rollouts, newest first, at most `MAX_HISTORY`. `other`: see `replaced`."""
    entries = [*filter(None, [other]), *weights.status.history]
    version, run_id = rollout.desired.version, rollout.desired.run_id
    known = {(e.version, e.run_id, e.started_at) for e in entries}
    recorded = (version, run_id, started_at) in known
    problem = rollout.step.problem
    if phase is RolloutPhase.APPLIED and not recorded:
        done = HistoryEntry(
            version=version,
            run_id=run_id,
            result="Applied",
            started_at=started_at,
            total_seconds=timings.total_seconds,
            max_worker_pause_seconds=timings.max_worker_pause_seconds,
            requested_by=requested_by,
        )
        entries.insert(0, done)
    if phase is RolloutPhase.HALTED and not recorded and problem:
        halted = HistoryEntry(
            version=version,
            run_id=run_id,
            result="Halted",
            started_at=started_at,
            total_seconds=round(weights.watched.seconds_since(started_at, now), 3),
            reason=problem.reason,
            message=shortened(problem.message),
            requested_by=requested_by,
        )
        entries.insert(0, halted)
    return tuple(entries[:MAX_HISTORY])
