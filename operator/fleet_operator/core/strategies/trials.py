"""The canaries of a version so far, as the WeightVersion's status records them (`status.canaries`).

The time of a canary begins with its first call for the version, in its present process. So a worker that takes the
place of another one has all of it, and so has one that comes back. A process that has ended since its call may have
ended through the version. One that was away before has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet_operator.core.actions import Load, Stage, WorkerCall
from fleet_operator.core.identity import Named, same_weights
from fleet_operator.core.observed import Watched
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.worker_view import WorkerView
from rlfleet_resources.weights_status import MAX_CANARY_PODS, CanaryRecord


@dataclass(frozen=True, slots=True)
class Trial:
    """One worker that was called to read a version as its canary.

    Fields:
        seconds: since the call, as far as this leader has watched the phase.
        is_alive: the process that got the call still runs.
        deaths: how many processes of its pod have ended after such a call.
    """

    pod: str
    uid: str
    seconds: float
    is_alive: bool
    deaths: int


def trials_of(
    records: Sequence[CanaryRecord],
    workers: Iterable[WorkerView],
    watched: Watched,
    now: datetime,
) -> tuple[Trial, ...]:
    """The trials of the canaries in a status."""
    if not records:
        return ()
    pods = {w.pod.uid: w.pod for w in workers}
    found = []
    for record in records:
        pod = pods.get(record.uid)
        is_alive = pod is not None and pod.running and pod.restarts == record.restarts
        ended = pod is not None and not is_alive
        seconds = min(watched.seconds_since(record.called_at, now), watched.phase_seconds)
        trial = Trial(record.pod, record.uid, seconds, is_alive, record.deaths + ended)
        found.append(trial)
    return tuple(found)


def records_after(
    before: Sequence[CanaryRecord],
    canaries: Sequence[WorkerView],
    calls: Iterable[WorkerCall | Quarantine],
    goal: Named,
    *,
    now: datetime,
) -> tuple[CanaryRecord, ...]:
    """The records, with those of the canaries that get a call for the goal now, or have got one. `calls`: permitted."""
    if not canaries:
        return tuple(before)
    called = {c.pod_uid for c in calls if isinstance(c, Stage | Load) and same_weights(c, goal)}
    known = {r.uid: r for r in before}
    for canary in canaries:
        pod, old = canary.pod, known.get(canary.pod.uid)
        if old is not None and old.restarts == pod.restarts:
            continue
        if pod.uid in called or canary.facts.has_bytes(goal) or canary.is_doing("stage", goal):
            deaths = 0 if old is None else old.deaths + 1
            known[pod.uid] = CanaryRecord(
                pod=pod.name, uid=pod.uid, called_at=now, restarts=pod.restarts, deaths=deaths
            )
    return tuple(known.values())[:MAX_CANARY_PODS]
