"""Plans from where each worker reads a version: from the store, or from a worker that holds it (`weights.peers`).

    holds the version        serves it to at most `FAN_OUT` others, also while it still reads it itself
    must stage it            reads from such a worker: on its own node if it can, else from the one of its zone
                             with the fewest readers. If its zone has none, one of the zone reads from another
                             zone, and the others wait until that one serves them
    none holds it, or the    reads the store, if fewer than `maxStoreReaders` of its zone do
    worker refused several

Traffic between zones is slow and costs money. Without zones, all workers are in one.

So a tree grows from the workers that read the store. A call names one peer. If that fails, the worker refuses,
and the next call names another one. So no two workers wait for each other: each reads from one that served the
version before its own read began. With others in the same call this would not hold.

A worker reads from peers only if the digest is known: it decides which bytes are right. A peer that sent other
bytes, or none, is not asked again by that worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TypeVar

from fleet_operator.api.fleet import PeerSettings
from fleet_operator.core.actions import CompareFiles, Stage
from fleet_operator.core.pod_actions import OnPod
from fleet_operator.core.worker_view import PROBE_SECONDS, WorkerView
from fleet_worker.protocol import Peer

FAN_OUT = 3
"""Readers of one worker. With 3, 4 levels reach 120 workers."""
MOST_REFUSED = 4
"""A worker that has refused this number of peers for a version reads the store. It remembers 8."""
A = TypeVar("A", bound=OnPod)
BEGINS_SECONDS = PROBE_SECONDS
"""After this time of reading, a worker that serves nothing yet keeps no others of its zone waiting."""
_Free = tuple[int, int, str]
"""Readers, ordinal and uid of a worker that may have room."""


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """Fields:
    store_readers: how many workers of a zone may read a version from the store at once; None if any number may.
    waiting: uids of workers that wait until a peer has room for them, or until one of their zone serves.
    """

    store_readers: int | None = None
    waiting: AbstractSet[str] = frozenset()


def with_peers(
    actions: Iterable[A], workers: Sequence[WorkerView], settings: PeerSettings
) -> tuple[tuple[A, ...], PeerPlan]:
    """The same actions, in which stages name the peers to read from.

    `workers`: all workers of the fleet.
    """
    views = {worker.pod.uid: worker for worker in workers}
    reading = (worker for worker in workers if not _has_gone(worker))
    readers = Counter(uid for worker in reading if (uid := reads_from(worker)) is not None)
    holders: dict[str, _Holders] = {}
    waiting, made = set[str](), list[A]()
    for action in actions:
        if not isinstance(action, Stage) or isinstance(action, CompareFiles) or not action.digest:
            made.append(action)
            continue
        reader, digest = views[action.pod_uid], action.digest
        if digest not in holders:
            holders[digest] = _Holders(workers, action, digest, readers)
        peer = holders[digest].take_for(reader)
        if peer is None and holders[digest].may_serve(reader):
            waiting.add(action.pod_uid)
        made.append(replace(action, peers=() if peer is None else (peer,)))
    return tuple(made), PeerPlan(settings.max_store_readers, waiting)


class _Holders:
    """The workers that serve one version, and their readers. Each choice costs little, however many they are."""

    def __init__(
        self, workers: Iterable[WorkerView], stage: Stage, digest: str, readers: Counter[str]
    ) -> None:
        self._digest = digest
        self._begun: dict[str, set[str]] = {}
        self._readers = readers
        self._peers: dict[str, Peer] = {}
        self._by_node: dict[str | None, list[str]] = {}
        self._by_zone: dict[str, set[str]] = {}
        self._free: list[_Free] = []
        self._free_in: dict[str, list[_Free]] = {}
        for worker in workers:
            if _begins(worker, stage):
                self._note_begun(worker)
            if (peer := as_peer(worker, digest)) is not None:
                pod = worker.pod
                self._peers[pod.uid] = peer
                self._by_node.setdefault(pod.node, []).append(pod.uid)
                self._by_zone.setdefault(pod.zone, set()).add(pod.uid)
                free = (readers[pod.uid], pod.ordinal, pod.uid)
                self._free.append(free)
                self._free_in.setdefault(pod.zone, []).append(free)
        for each in (self._free, *self._free_in.values()):
            heapify(each)

    def may_serve(self, reader: WorkerView) -> bool:
        """Whether there is a peer for a worker, perhaps later."""
        refused = refused_by(reader, self._digest)
        return refused is not None and not self._peers.keys() <= refused

    def is_near(self, zone: str, refused: AbstractSet[str]) -> bool:
        """Whether a worker of a zone serves the version, and is not refused."""
        return not self._by_zone.get(zone, set()) <= refused

    def other_begins(self, reader: WorkerView) -> bool:
        """Whether another worker of its zone begins to read the version, and serves it soon."""
        return not self._begun.get(reader.pod.zone, set()) <= {reader.pod.uid}

    def take_for(self, reader: WorkerView) -> Peer | None:
        """Count a worker as a reader of the best peer that has room; None without one."""
        refused = refused_by(reader, self._digest)
        if refused is None:
            return None
        near = self._by_node.get(reader.pod.node, ())
        uid = next((u for u in near if u not in refused and self._readers[u] < FAN_OUT), None)
        if uid is None:
            zone = reader.pod.zone
            is_near = self.is_near(zone, refused)
            if not is_near and self.other_begins(reader):
                return None
            free = self._free_in[zone] if is_near else self._free
            uid = self._with_fewest_readers(free, refused)
            if uid is not None and not is_near and not reader.unheeded:
                self._note_begun(reader)
        if uid is None:
            return None
        self._readers[uid] += 1
        return self._peers[uid]

    def _note_begun(self, worker: WorkerView) -> None:
        self._begun.setdefault(worker.pod.zone, set()).add(worker.pod.uid)

    def _with_fewest_readers(self, free: list[_Free], refused: AbstractSet[str]) -> str | None:
        passed, found = [], None
        while free and found is None:
            count, ordinal, uid = heappop(free)
            now = self._readers[uid]
            if now < FAN_OUT:
                passed.append((now, ordinal, uid))
            if now == count < FAN_OUT and uid not in refused:
                found = uid
            elif now < FAN_OUT and now != count:
                heappush(free, passed.pop())
        for entry in passed:
            heappush(free, entry)
        return found


def _has_gone(reader: WorkerView) -> bool:
    """Whether a worker reads no more, whatever its last answer says: no other worker must wait for it."""
    pod = reader.pod
    gone = pod.deleting or bool(pod.quarantine) or not pod.running
    return gone or reader.silent_seconds >= PROBE_SECONDS


def _begins(worker: WorkerView, stage: Stage) -> bool:
    """Whether a worker is called to read a version, or has just begun to."""
    if _has_gone(worker) or worker.state is None or worker.state.peers is None:
        return False
    seconds = worker.seconds_at("stage", stage)
    return worker.call == stage.work or (seconds is not None and seconds < BEGINS_SECONDS)


def reads_from(worker: WorkerView) -> str | None:
    """Uid of the pod that a worker reads a version from now; None if it reads from no peer."""
    state = worker.state
    return state.peers.reads_from if state is not None and state.peers is not None else None


def as_peer(worker: WorkerView, digest: str) -> Peer | None:
    """A worker as one to read a version from; None if others may not."""
    pod, state = worker.pod, worker.state
    gone = pod.deleting or pod.quarantine or pod.drains_since is not None or not pod.running
    if gone or pod.ip is None or worker.silent_seconds > 0 or state is None or state.peers is None:
        return None
    if digest not in state.peers.serves:
        return None
    return Peer(host=pod.ip, port=state.peers.port, pod_uid=pod.uid)


def refused_by(reader: WorkerView, digest: str) -> AbstractSet[str] | None:
    """Uids of the peers that a worker does not ask for a version: itself, and those that it has refused. None if
    it reads from no peer any more.
    """
    if reader.state is None or reader.state.peers is None:
        return None
    refused = {r.pod_uid for r in reader.state.peers.refused if r.digest == digest}
    return None if len(refused) >= MOST_REFUSED else refused | {reader.pod.uid}
