"""Bounds how many workers read one checkpoint at once: of a fleet (`rollout.maxStaging`), and of a zone with peers
(`weights.peers.maxStoreReaders`).

A worker holds a place from the call to read until it reports the end. Reading for a former leader
counts, too: the worker reports it. A place becomes free when

    the worker has the bytes, or has refused them
    it has been reading, or is silent, for longer than the timeout of the call
    its pod is deleted, or it answers neither the operator nor the kubelet's probe for 10 s

A worker that has found no checkpoint, or a part of one, keeps its place for a second. So at most
`maxStaging` workers look for a missing checkpoint in each second, in turn.

Places go first to workers that read another checkpoint, which the call ends. Next come workers that
have not failed to read this one. Then the order of the calls counts: members before joining workers,
each by ordinal. So a worker that keeps failing or restarting does not keep another worker waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_failures
from fleet_operator.core.actions import ReadLora, Stage, WorkerCall
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.peers import reads_from
from fleet_operator.core.percentages import at_most
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.work import Work, WorkKind
from fleet_operator.core.worker_view import PROBE_SECONDS, Standing, WorkerView
from fleet_operator.counts import agree
from fleet_worker.protocol import Reason

Reading = Stage | ReadLora
"""The calls that make a worker read a checkpoint."""
_READS_LIKE: dict[str, WorkKind] = {"compare": "stage", "compare-adapter": "stage-adapter"}
"""A comparison takes a place of those that stage, and the worker reports it as a stage."""
_UNWRITTEN = frozenset({Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_READY})


def max_staging(settings: Rollout, replicas: int) -> int | None:
    """How many workers may read one checkpoint at once; None if any number may."""
    amount = settings.max_staging
    return None if amount is None else at_most(amount, replicas)


@dataclass(frozen=True, slots=True)
class Places:
    """Places of workers to read: those in use, and those given now.

    Fields:
        rule: how many may read one checkpoint at once, in words.
        given: what each of them reads, and its uid.
        waiting: uids of workers that wait until a peer has room for them.
    """

    rule: str
    given: AbstractSet[tuple[Work, str]]
    waiting: AbstractSet[str] = frozenset()

    def permit(self, call: WorkerCall) -> bool:
        """Whether a call reads no checkpoint from a store, or there is a place for it."""
        if isinstance(call, Stage) and call.peers:
            return True
        return not isinstance(call, Reading) or (_place(call.work), call.pod_uid) in self.given


def places_of(
    wishes: Iterable[WorkerCall | Quarantine],
    workers: Sequence[WorkerView],
    most: int | None,
    *,
    of_zone: int | None = None,
    waiting: AbstractSet[str] = frozenset(),
) -> Places | None:
    """The places of the workers that read, and of those wishes that get one; None if any number may.

    A worker that reads from a peer needs none.

    `workers`: all workers of the fleet. `most`, `of_zone`: how many may read one checkpoint at once, in the
    fleet and in each zone; None if any number may. `waiting`: uids of workers that wait for a peer.
    """
    if most is None and of_zone is None:
        return None
    asked: dict[Work, list[Reading]] = {}
    for wish in wishes:
        if isinstance(wish, Stage) and (wish.peers or wish.pod_uid in waiting):
            continue
        if isinstance(wish, Reading):
            asked.setdefault(_place(wish.work), []).append(wish)
    views = {w.pod.uid: w for w in workers}
    given = {
        (place, uid)
        for place, found in asked.items()
        for uid in _placed(found, views, most, of_zone)
    }
    return Places(_rule(most, of_zone), given, waiting)


def _rule(most: int | None, of_zone: int | None) -> str:
    limits = []
    if most is not None:
        limits.append(f"{most} {agree(most, 'reads', 'read')} a checkpoint")
    if of_zone is not None and (most is None or of_zone < most):
        limits.append(f"{of_zone} of a zone {agree(of_zone, 'reads', 'read')} the store")
    return f"at most {' and '.join(limits)} at once"


def _place(work: Work) -> Work:
    """The work that a place is for."""
    kind = _READS_LIKE.get(work.kind)
    return work if kind is None else work._replace(kind=kind)


def _placed(
    asked: list[Reading], views: dict[str, WorkerView], most: int | None, of_zone: int | None
) -> set[str]:
    """Uids of the workers that hold a place for one checkpoint, or get one now."""
    (first, *_) = asked
    holders = {uid for uid, view in views.items() if _holds_place(view, first)}
    for uid, view in views.items():
        if (most is None or len(holders) < most) and _has_just_looked(view, first):
            holders.add(uid)
    new = [a for a in asked if a.pod_uid not in holders]
    new.sort(key=lambda a: _comes_later(views[a.pod_uid], a))
    in_zone = Counter(views[uid].pod.zone for uid in holders)
    for call in new:
        zone = views[call.pod_uid].pod.zone
        if most is not None and len(holders) >= most:
            break
        if of_zone is None or in_zone[zone] < of_zone:
            holders.add(call.pod_uid)
            in_zone[zone] += 1
    return holders


def _holds_place(worker: WorkerView, call: Reading) -> bool:
    pod = worker.pod
    if pod.deleting or pod.quarantine or not pod.running or reads_from(worker) is not None:
        return False
    if worker.standing is Standing.ABSENT and worker.silent_seconds >= PROBE_SECONDS:
        return False
    place = _place(call.work)
    if worker.call is not None and _place(worker.call) == place:
        return True  # until its timeout
    kind = _READS_LIKE.get(call.kind, call.kind)
    seconds = worker.seconds_at(kind, _weights_of(call))
    if seconds is None and any(_place(lost) == place for lost in worker.lost_calls):
        seconds = worker.silent_seconds
    return seconds is not None and seconds <= call.timeout_seconds


def _has_just_looked(worker: WorkerView, call: Reading) -> bool:
    """Whether it keeps its place until it looks again, unless others read meanwhile."""
    pod = worker.pod
    if pod.deleting or pod.quarantine or not pod.running or worker.operation is not None:
        return False
    answer = worker_failures.last_failure(worker, _weights_of(call))
    if answer is None or answer.reason not in _UNWRITTEN:
        return False
    return answer.age_seconds + worker.state_age_seconds < worker_failures.WAIT_SECONDS


def _comes_later(worker: WorkerView, call: Reading) -> tuple[bool, bool, bool]:
    reads_another = worker.is_doing("stage")
    has_failed = worker_failures.last_failure(worker, _weights_of(call)) is not None
    return worker.pod.drains_since is not None, not reads_another, has_failed


def _weights_of(call: Reading) -> WeightsId:
    return WeightsId(call.version, call.run_id, call.digest)
