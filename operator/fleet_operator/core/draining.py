"""Workers that are to go: their requests end first.

    serves nobody                             deleted at once
    serves, not marked                        BeginDrain: out of the Service, marked with the time
    marked, its latch is open                 Fence with the drain timeout, once no call is at work on it
    marked, fenced, requests run              waited for; the worker ends them at the drain timeout
    marked, fenced, at rest                   deleted
    marked, and it is to stay after all       EndDrain once its fence is over; then it joins again

The mark stands on the pod, and how far the drain is in the worker's state: any leader goes on with
it. The Service drops the worker before its latch closes, since the mark is seen before the fence is
sent. A worker that holds requests for a rollout is fenced when the rollout has let it go.

The drain timeout runs on the worker's own clock. The time of the mark bounds only what a worker says
or does not say: one that is silent, or at its fence for ever, is deleted, and its preStop hook gives
its requests the drain timeout on the spot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet_operator.core.actions import BeginDrain, DeletePod, EndDrain, Fence
from fleet_operator.core.observed import PROBE_SECONDS, FleetObserved, Standing, WorkerView
from fleet_worker.protocol import Phase

LATE_SECONDS = 120.0
"""So much later than its drain timeout a marked worker is deleted whatever it says. Longer than the
clocks of two hosts differ."""
_BESIDE = ("stage", "adapter")
"""Work that a fence does not disturb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A worker that is to go, and why."""

    worker: WorkerView
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """What is done about workers that are to go.

    Fields:
        calls: fences.
        claimed: uids of workers to which nothing else is sent now.
    """

    actions: tuple[BeginDrain | EndDrain | DeletePod, ...] = ()
    calls: tuple[Fence, ...] = ()
    claimed: frozenset[str] = frozenset()


def is_marked(worker: WorkerView) -> bool:
    """Whether it drains, to be deleted then."""
    return worker.pod.drains_since is not None


def may_serve(worker: WorkerView) -> bool:
    """Whether its loss could be felt. A probe that fails once on a busy machine (measured: while
    its neighbor starts) does not make an admitted worker one that costs nothing.
    """
    admitted = worker.state is not None and worker.state.admitted and worker.pod.running
    return worker.pod.ready or admitted


def requests_of(worker: WorkerView) -> int:
    """How many requests it has, running or held, by its own account."""
    state = worker.state
    return state.requests_running + state.requests_held if state is not None else 0


def drain(
    observed: FleetObserved,
    leaving: Sequence[Leaving],
    staying: Sequence[WorkerView],
    *,
    now: datetime,
) -> Draining:
    """Take each leaving worker one step further, and take back the drain of each that stays."""
    timeout_seconds = observed.spec.update.drain_timeout_seconds
    actions: list[BeginDrain | EndDrain | DeletePod] = []
    calls: list[Fence] = []
    claimed: set[str] = set()
    for one in leaving:
        worker, pod = one.worker, one.worker.pod
        if _may_be_deleted(worker, timeout_seconds, now):
            actions.append(DeletePod(name=pod.name, uid=pod.uid, reason=one.reason))
        elif _mark_is_wanted(worker, now):
            if worker.standing is not Standing.HELD:
                begin = BeginDrain(name=pod.name, uid=pod.uid, since=now, reason=one.reason)
                actions.append(begin)
                claimed.add(pod.uid)
        elif _takes_a_fence(worker):
            calls.append(
                Fence(
                    pod_uid=pod.uid,
                    pod_name=pod.name,
                    reason=one.reason,
                    drain_timeout_seconds=timeout_seconds,
                )
            )
            claimed.add(pod.uid)
    for worker in staying:
        if is_marked(worker) and not _is_at_its_fence(worker):
            reason = "it is wanted after all"
            actions.append(EndDrain(name=worker.pod.name, uid=worker.pod.uid, reason=reason))
            claimed.add(worker.pod.uid)
    return Draining(actions=tuple(actions), calls=tuple(calls), claimed=frozenset(claimed))


def _may_be_deleted(worker: WorkerView, timeout_seconds: float, now: datetime) -> bool:
    since = worker.pod.drains_since
    if since is None:
        return not may_serve(worker)
    if not worker.pod.running or worker.silent_seconds >= PROBE_SECONDS:
        return True
    closed = worker.state is not None and not worker.state.admitted and not worker.silent_seconds
    if closed and not _is_at_its_fence(worker):
        return True
    return now - since > timedelta(seconds=timeout_seconds + LATE_SECONDS)


def _mark_is_wanted(worker: WorkerView, now: datetime) -> bool:
    """One that was made by a clock far ahead of ours is made again."""
    since = worker.pod.drains_since
    return since is None or since - now > timedelta(seconds=LATE_SECONDS)


def _is_at_its_fence(worker: WorkerView) -> bool:
    """Whether its latch is closed or about to be, and its requests have not ended yet."""
    if worker.call.startswith("fence") or worker.operation.startswith("fence"):
        return True
    state = worker.state
    return state is not None and state.phase is Phase.PAUSING and not state.admitted


def _takes_a_fence(worker: WorkerView) -> bool:
    """Whether its requests run, and nothing is at work that a fence would cut short."""
    if worker.silent_seconds or worker.state is None or not worker.state.admitted:
        return False
    if worker.call.startswith("fence"):
        return True  # in flight; nothing else is sent meanwhile
    works = [w for w in (worker.call, worker.operation) if w]
    return worker.state.phase is Phase.SERVING and all(w.startswith(_BESIDE) for w in works)
