"""Copies of a simulation, to go on from one moment in many ways, and what makes two moments the same.

Immutable records (specs, statuses, states, decisions) are shared between copies.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.model.availability import Availability
from tests.model.deserved import Deserved
from tests.model.fake_pods import EPOCH_START, FakePod
from tests.model.fake_requests import FakeRequests
from tests.model.fake_revisions import FakeRevisions
from tests.model.fake_state import Files, Note, Ticket
from tests.model.fake_worker import FakeWorker
from tests.model.faults import Faults
from tests.model.leader import Doing, Flight, Leader
from tests.model.promises import Promises
from tests.model.readers import Readers
from tests.model.repeated_calls import Ignored, RepeatedCalls
from tests.model.reported import Reported
from tests.model.same_files import SameFiles
from tests.model.simulator import Simulation
from tests.model.stored_first import StoredFirst
from tests.model.wire import Wire

from fleet_operator.runtime.attempts import Attempt, Attempts
from fleet_operator.runtime.call_record import CallRecord
from fleet_operator.runtime.epochs import Epochs
from fleet_operator.runtime.resource_versions import KnownVersion
from fleet_operator.runtime.rollout_timers import RolloutTimer, RolloutTimers
from fleet_operator.runtime.templates import Templates
from fleet_operator.runtime.unobserved_writes import UnobservedWrites
from fleet_worker.lifecycle.canary_report import History
from fleet_worker.lora.refused import RefusedAdapters
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

_MUTABLE = frozenset(
    {
        *(FakePod, FakeRequests, Ticket, FakeWorker, Flight, Leader, Files),
        *(
            Promises,
            Availability,
            Readers,
            RepeatedCalls,
            Ignored,
            SameFiles,
            StoredFirst,
            Deserved,
            Reported,
            Faults,
            Simulation,
            Wire,
            Epochs,
            RolloutTimers,
            RolloutTimer,
        ),
        *(UnobservedWrites, KnownVersion, CallRecord, Attempts, Attempt),
        *(FakeRevisions, Templates, History, RefusedAdapters),
    }
)
_START = EPOCH_START.timestamp()
_LONG_AGO_SECONDS = 31.0
"""Ages above this are all the same: no rule looks further back, except for the timeouts of the
phases that have one."""
_TIMED = frozenset(
    {RolloutPhase.STAGING, RolloutPhase.PAUSING, RolloutPhase.LOADING, RolloutPhase.JUDGING}
)


def copied(simulation: Simulation) -> Simulation:
    """Another simulation that is at the same moment."""
    found: Simulation = _copied(simulation, {})
    return found


def _copied(thing: Any, known: dict[int, Any]) -> Any:
    kind = type(thing)
    if kind in {list, deque}:
        made = [_copied(item, known) for item in thing]
        return made if kind is list else deque(made, thing.maxlen)
    if kind is dict:
        return {key: _copied(value, known) for key, value in thing.items()}
    if kind is set:
        return set(thing)
    if kind not in _MUTABLE:
        return thing
    if id(thing) not in known:
        known[id(thing)] = twin = object.__new__(kind)
        for name in vars(thing) if hasattr(thing, "__dict__") else kind.__slots__:
            setattr(twin, name, _copied(getattr(thing, name), known))
    return known[id(thing)]


def essence(simulation: Simulation) -> tuple[Any, ...]:
    """Equal for two moments from which everything continues alike. Times are as seen from now, in
    tenths of a second: no rule knows shorter ones.
    """
    now = simulation.now
    leader = simulation.leader
    return (
        simulation.desired,
        tuple(_pod(p, now, leader.term) for p in simulation.pods.values()),
        tuple((n, _ago(t, now)) for n, t in simulation.nodes.items()),
        _fleet(simulation.fleet_stored, now),
        *(_weights(s, now) for s in simulation.weights_stored.values()),
        simulation.applied_written,
        _leader(leader, now),
        tuple(
            (s.action.work, s.epoch, _ago(s.arrives_at, now)) for s in simulation.wire.late_calls
        ),
        (simulation.promises.served, simulation.promises.agree, *simulation.promises.requested),
        frozenset(simulation.promises.availability.taken & set(simulation.pods)),
        frozenset((pod.uid, name) for pod, name in simulation.promises.stored_first.openings()),
    )


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(at - now, -_LONG_AGO_SECONDS), 1)


def _pod(pod: FakePod, now: float, term: int) -> tuple[Any, ...]:
    worker = pod.worker
    tickets = (worker.work, worker.staging, *worker.waiting)
    return (
        *(pod.uid, pod.node, pod.owner, pod.quarantine, pod.ready, pod.cut_off, pod.problem),
        *(
            pod.ended,
            pod.grace,
            pod.by_hand,
            pod.loses_answer,
            _ago(pod.wrong_since, now),
            _ago(pod.deleted_at, now),
        ),
        *(worker.revision, worker.start_version, worker.phase, worker.admitted, worker.label),
        *(worker.weights, worker.source, worker.staged, worker.staged_source, worker.restarts),
        *(worker.run_id, worker.staged_run_id, worker.staged_weights, worker.start_digest),
        *(_ago(worker.started_at, now), _ago(worker.lease_until, now), _ago(worker.paused_at, now)),
        *(max(0.0, round(worker.stubborn_until - now, 1)), _ago(worker.not_idle_since, now)),
        *(worker.loaded_since_pause, worker.hung, worker.slow_seconds),
        *(worker.ignores, worker.refuses, worker.resets, worker.claims, worker.probed),
        *(tuple(_note(n, now) for n in worker.refused_stages), _note(worker.load_failure, now)),
        (worker.epoch.term - term, worker.epoch.sequence) if worker.epoch else None,
        *(frozenset(s) for s in (worker.bad_sources, worker.breaking_versions)),
        tuple((t.work, t.step, _ago(t.ends_at, now)) for t in tickets if t),
        (report.version, report.run_id) if (report := worker.probes.report) else None,
    )


def _note(note: Note | None, now: float) -> tuple[Any, ...] | None:
    return None if note is None else (note.version, note.reason, _ago(note.at, now))


def _leader(leader: Leader, now: float) -> tuple[Any, ...]:
    flights = ((u, f.action.work, _ago(f.given_up_at, now)) for u, f in leader.flights.items())
    heard = (
        (uid, h.restarts, _ago(h.at, now), h.state.phase, h.state.admitted, h.state.version)
        for uid, h in leader.heard.items()
    )
    return (
        *(tuple(leader.epochs.goals.items()), leader.epoch.sequence, _fleet(leader.fleet, now)),
        leader.epoch.term - leader.term,
        tuple(_watched(leader, uid, status) for uid, status in leader.weights.items()),
        *(_weights(s, now) for s in leader.weights.values()),
        *(leader.written.get("fleet") == leader.fleet, tuple(flights), tuple(heard)),
        tuple((uid, _ago(t, now)) for uid, t in leader.silent_since.items()),
        frozenset(leader.may_open),
        tuple((uid, _calls(record, now)) for uid, record in leader.calls.items()),
        tuple(_what(action) for action in leader.todo),
    )


def _calls(record: CallRecord, now: float) -> tuple[Any, ...]:
    """The calls that a leader repeats late, or knows to be ignored."""
    attempts = record._attempts._known.items()
    late = ((w, a.count, a.shown, _ago(a.last_at, now)) for w, a in attempts if not a.is_over(now))
    return (*late, *((u.work, u.outcome, u.lasts) for u in record.unheeded(now)))


def _watched(leader: Leader, uid: str, status: WeightsStatus) -> float | None:
    seen = leader.watch.seen(uid)
    return round(seen.phase_seconds, 1) if seen and status.phase in _TIMED else None


def _what(action: Doing) -> tuple[object, ...]:
    target = getattr(action, "pod_uid", getattr(action, "uid", getattr(action, "pod_name", "")))
    return (type(action).__name__, getattr(action, "work", ""), target)


def _fleet(status: FleetStatus, now: float) -> tuple[Any, ...]:
    applied = status.applied.version if status.applied else None
    recycled = tuple((r.pod, r.uid, r.count) for r in status.recycled)
    current = status.transition
    moves = (current.version, current.strategy, current.back) if current else None
    return (status.observed_generation, applied, recycled, moves)


def _weights(status: WeightsStatus, now: float) -> tuple[Any, ...]:
    began, phase_began = (
        t.timestamp() - _START if t else None for t in (status.started_at, status.phase_started_at)
    )
    timed = status.phase in _TIMED and phase_began is not None
    return (
        *(status.observed_generation, status.desired_version, status.phase, status.retried),
        *(_ago(began, now), round(phase_began - now, 1) if timed else None),
        tuple((e.version, e.result) for e in status.history),
        tuple((c.type, c.status, c.reason) for c in status.conditions),
    )
