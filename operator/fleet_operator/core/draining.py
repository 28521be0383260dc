"""Drains workers before their pods are deleted: their requests end first.

    has no clients                            deleted at once
    serves, not marked                        BeginDrain: out of the Service, marked with the time
    marked, its latch is open                 Fence with the drain timeout, once no other call runs
    marked, fenced, requests run              wait; the worker ends them at the drain timeout
    marked, fenced, idle                      deleted
    marked, but needed again                  EndDrain once its fence has ended; then it joins again

The pod carries the mark and the worker's state shows the progress, so that any leader can continue
the drain. The fence is sent after the mark is seen, so the Service drops the worker before its latch
closes. A worker that a rollout has paused is fenced once the rollout has resumed it.

The drain timeout runs on the worker's own clock. The time of the mark is a second limit: a worker
that is silent, or never ends its fence, is deleted. Its preStop hook then gives the requests the
drain timeout, but not in the middle of a load. So a silent worker that held requests for a rollout
gets the drain timeout before its deletion, while the kubelet's probe still reaches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet_operator.core.actions import Fence
from fleet_operator.core.facts import Workers
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import BeginDrain, DeletePod, EndDrain
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView
from fleet_worker.protocol import Phase

LATE_SECONDS = 120.0
"""A marked worker is deleted this long after its drain timeout, whatever it reports. Longer than the
clocks of two hosts differ."""
_HELD = frozenset({Phase.PAUSED, Phase.LOADING})
_NOT_INTERRUPTED = ("stage", "compare", "stage-adapter", "compare-adapter", "adapter")
"""Work that may run when a fence is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A worker that must go, and why."""

    worker: WorkerView
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The actions for workers that must go.

    Fields:
        calls: fences.
        claimed: uids of workers that get no other call now.
    """

    actions: tuple[BeginDrain | EndDrain | DeletePod, ...] = ()
    calls: tuple[Fence, ...] = ()
    claimed: frozenset[str] = frozenset()


def is_marked(worker: WorkerView) -> bool:
    """Whether the pod has the drain mark, and will be deleted after its drain."""
    return worker.pod.drains_since is not None


def may_serve(worker: WorkerView) -> bool:
    """Whether clients could notice its loss. An admitted worker counts even when its probe fails: a
    probe can fail once on a busy machine (measured: while another worker starts).
    """
    admitted = worker.state is not None and worker.state.admitted and worker.pod.running
    return worker.pod.ready or admitted


def drain(
    observed: FleetObserved,
    leaving: Sequence[Leaving],
    staying: Workers,
    *,
    now: datetime,
) -> Draining:
    """Takes each leaving worker one step further, and ends the drain of each that stays."""
    timeout_seconds = observed.spec.update.drain_timeout_seconds
    actions: list[BeginDrain | EndDrain | DeletePod] = []
    calls: list[Fence] = []
    claimed: set[str] = set()
    for one in leaving:
        worker, pod = one.worker, one.worker.pod
        if _may_be_deleted(worker, timeout_seconds, now):
            actions.append(DeletePod(pod_name=pod.name, pod_uid=pod.uid, reason=one.reason))
        elif _needs_mark(worker, now):
            if worker.standing is not Standing.HELD:
                begin = BeginDrain(pod_name=pod.name, pod_uid=pod.uid, since=now, reason=one.reason)
                actions.append(begin)
                claimed.add(pod.uid)
        elif _can_be_fenced(worker):
            calls.append(
                Fence(
                    pod_uid=pod.uid,
                    pod_name=pod.name,
                    reason=one.reason,
                    drain_timeout_seconds=timeout_seconds,
                )
            )
            claimed.add(pod.uid)
    for worker in staying.where(lambda f: f.pod.drains):
        if not _is_being_fenced(worker):
            reason = "the fleet needs it again"
            actions.append(
                EndDrain(pod_name=worker.pod.name, pod_uid=worker.pod.uid, reason=reason)
            )
            claimed.add(worker.pod.uid)
    return Draining(actions=tuple(actions), calls=tuple(calls), claimed=frozenset(claimed))


def _may_be_deleted(worker: WorkerView, timeout_seconds: float, now: datetime) -> bool:
    since = worker.pod.drains_since
    if since is None:
        return not may_serve(worker)
    if not worker.pod.running or worker.silent_seconds >= PROBE_SECONDS:
        # Its preStop hook lets requests end, unless a rollout holds them.
        is_held = worker.pod.ready and worker.state is not None and worker.state.phase in _HELD
        return not is_held or now - since > timedelta(seconds=timeout_seconds)
    closed = worker.state is not None and not worker.state.admitted and not worker.silent_seconds
    if closed and not _is_being_fenced(worker):
        return True
    return now - since > timedelta(seconds=timeout_seconds + LATE_SECONDS)


def _needs_mark(worker: WorkerView, now: datetime) -> bool:
    """Whether the mark is missing, or was made by a clock far ahead of ours."""
    since = worker.pod.drains_since
    return since is None or since - now > timedelta(seconds=LATE_SECONDS)


def _is_being_fenced(worker: WorkerView) -> bool:
    """Whether it is being fenced: its latch is closed or closing, and requests still run."""
    if worker.is_called_to("fence") or worker.is_doing("fence"):
        return True
    state = worker.state
    return state is not None and state.phase is Phase.PAUSING and not state.admitted


def _can_be_fenced(worker: WorkerView) -> bool:
    """Whether it serves, and no work is under way that a fence would interrupt."""
    if worker.silent_seconds or worker.state is None or not worker.state.admitted:
        return False
    if worker.is_called_to("fence"):
        return True  # in flight; nothing else is sent meanwhile
    works = [w for w in (worker.call, worker.operation) if w is not None]
    return worker.state.phase is Phase.SERVING and all(w.kind in _NOT_INTERRUPTED for w in works)
