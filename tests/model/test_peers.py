"""Games with peers that die, lie, hang and drop what they serve: the real plan, and fake workers that read.

The promises: staged bytes always have the digest, and a fleet stages even if all peers lie or die.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.support.builders import A_DIGEST, NOW, make_fleet, make_weights, make_worker, path_of

from fleet_operator.core import peers as planning
from fleet_operator.core.actions import Stage
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.worker_view import WorkerView
from fleet_worker.protocol import (
    Failure,
    Operation,
    Peer,
    PeerState,
    Reason,
    RefusedPeer,
    Source,
    Staged,
)

NO_PLAN = planning.PeerPlan()
WORKERS = 18
ZONES = 2
MOST_READERS = planning.FAN_OUT + 2
"""A reader that is new to its peer may come together with others that have left theirs."""
STEPS = 5
"""Ticks of a read."""
SILENCE = 4
"""Ticks until a reader leaves a peer that sends nothing."""
FAULTS_END = 60
LONGEST = 150
"""Ticks until all have staged after the last fault. Reads of the store take turns."""


@dataclass
class FakeReader:
    """One worker. `lies`: what others read from it has another digest. `hangs`: it sends nothing.

    `offer`: of what it serves; another one cuts its readers. `reads_offer`: the one that it reads.
    """

    ordinal: int
    lies: bool = False
    hangs: bool = False
    offer: int = 0
    reads_offer: int = 0
    bytes_: int = 0
    peers: list[Peer] = field(default_factory=list)
    reads: bool = False
    silent: int = 0
    staged: bool = False
    refused: dict[str, Reason] = field(default_factory=dict)
    failed_ago: int | None = None

    @property
    def uid(self) -> str:
        return make_worker(self.ordinal).view().pod.uid

    @property
    def zone(self) -> str:
        return f"zone-{self.ordinal % ZONES}"

    @property
    def serves(self) -> bool:
        return self.staged or self.reads

    def restart(self) -> None:
        """A new process: nothing is held, and nothing known."""
        fresh = FakeReader(self.ordinal, self.lies, self.hangs, self.offer + 1)
        self.__dict__.update(fresh.__dict__)

    def view(self) -> WorkerView:
        made = make_worker(self.ordinal).serving("41")
        made = made.on_node(f"node-{self.ordinal % 4}").in_zone(self.zone)
        refused = tuple(
            RefusedPeer(pod_uid=uid, digest=A_DIGEST, reason=reason, message="test")
            for uid, reason in list(self.refused.items())[:8]
        )
        made = made.reporting(
            peers=PeerState(
                port=8083,
                serves=(A_DIGEST,) if self.serves else (),
                reads_from=self.peers[0].pod_uid if self.reads and self.peers else None,
                refused=refused,
            )
        )
        if self.staged:
            source = Source(path=path_of("42"))
            bytes_ = {"digest": A_DIGEST, "size_bytes": 1, "in_memory": True}
            made = made.reporting(staged=Staged(version="42", source=source, **bytes_))
        if self.reads:
            made = made.reporting(
                operation=Operation(kind="stage", version="42", running_seconds=1.0)
            )
        if self.failed_ago is not None:
            failure = Failure(
                version="42",
                reason=Reason.PEER_UNREADABLE,
                message="test",
                age_seconds=float(self.failed_ago),
            )
            made = made.reporting(stage_failure=failure)
        return made.view()


class Game:
    """A fleet, tick by tick."""

    def __init__(self, seed: int, *, worst: bool) -> None:
        """`worst`: after the faults no worker sends the right bytes."""
        self.chance = random.Random(seed)  # noqa: S311 - a game
        self.workers = [FakeReader(n) for n in range(WORKERS)]
        self.worst = worst

    def play(self) -> int:
        """Play until all have staged; return the ticks after the last fault."""
        for tick in range(FAULTS_END + LONGEST):
            if tick < FAULTS_END:
                self._fault()
            elif tick == FAULTS_END:
                for worker in self.workers:
                    worker.lies = self.worst and self.chance.random() < 0.5
                    worker.hangs = self.worst and not worker.lies
            self._plan()
            self._check()
            for worker in self.workers:
                self._read(worker)
            if tick >= FAULTS_END and all(w.staged for w in self.workers):
                return tick - FAULTS_END
        raise AssertionError("the fleet does not stage")

    def worker(self, uid: str) -> FakeReader:
        return next(w for w in self.workers if w.uid == uid)

    def _fault(self) -> None:
        worker = self.chance.choice(self.workers)
        kind = self.chance.randrange(6)
        if kind == 0:
            worker.restart()
        elif kind == 1:
            worker.lies = not worker.lies
        elif kind == 2:
            worker.hangs = not worker.hangs
        elif kind == 3:
            worker.staged, worker.offer = False, worker.offer + 1  # it drops the version

    def _plan(self) -> None:
        wanted = make_weights("42")
        wanted = replace(wanted, spec=wanted.spec.model_copy(update={"digest": A_DIGEST}))
        observed = make_fleet(
            wants=wanted,
            replicas=WORKERS,
            weights={"roots": ["/weights"], "peers": {"enabled": True}},
        )
        observed = replace(observed, workers=tuple(w.view() for w in self.workers))
        serving = [worker for worker in self.workers if worker.serves]
        across = Counter[str]()
        for call in plan_rollout(observed, now=NOW).step.actions:
            if isinstance(call, Stage):
                reader = self.worker(call.pod_uid)
                assert not reader.reads, "a call to a worker that reads already"
                self._check_zone(reader, call.peers, serving)
                across[reader.zone] += any(
                    self.worker(p.pod_uid).zone != reader.zone for p in call.peers
                )
                reader.peers, reader.reads, reader.silent = list(call.peers), True, 0
                reader.bytes_, reader.offer = 0, reader.offer + 1
                for peer in reader.peers:
                    reader.reads_offer = self.worker(peer.pod_uid).offer
        assert max(across.values(), default=0) <= 1, "several of a zone read across at once"

    def _check_zone(
        self, reader: FakeReader, peers: Sequence[Peer], serving: Sequence[FakeReader]
    ) -> None:
        near = [w.uid for w in serving if w.zone == reader.zone and w.uid not in reader.refused]
        assert not near or all(p.pod_uid in near for p in peers), "a needless read across zones"

    def _check(self) -> None:
        at_store = Counter(w.zone for w in self.workers if w.reads and not w.peers)
        assert max(at_store.values(), default=0) <= 1, "more than `maxStoreReaders` of a zone"
        reading = [
            (w, self.worker(w.peers[0].pod_uid)) for w in self.workers if w.reads and w.peers
        ]
        parents = {w.uid: p.uid for w, p in reading if p.offer == w.reads_offer}
        readers = list(parents.values())
        assert all(readers.count(p) <= MOST_READERS for p in readers), "too many readers"
        for uid in parents:
            seen = {uid}
            while (uid := parents.get(uid, "")) and uid in parents:
                assert uid not in seen, "workers wait for each other"
                seen.add(uid)

    def _read(self, worker: FakeReader) -> None:
        if worker.failed_ago is not None:
            worker.failed_ago += 1
        if not worker.reads:
            return
        if not worker.peers:
            worker.bytes_ += 1
        elif (refused := self._read_from(worker, worker.peers[0])) is not None:
            worker.refused[worker.peers.pop(0).pod_uid] = refused
            worker.bytes_ = worker.silent = 0
            if not worker.peers:
                worker.reads, worker.failed_ago, worker.offer = False, 0, worker.offer + 1
            return
        if worker.bytes_ >= STEPS:
            worker.reads, worker.staged, worker.failed_ago = False, True, None

    def _read_from(self, worker: FakeReader, peer: Peer) -> Reason | None:
        parent = self.worker(peer.pod_uid)
        if not parent.serves or parent.offer != worker.reads_offer:
            return Reason.PEER_UNREADABLE
        there = STEPS if parent.staged else parent.bytes_
        if parent.hangs or there <= worker.bytes_:
            worker.silent += 1
            return Reason.PEER_UNREADABLE if worker.silent >= SILENCE else None
        worker.silent, worker.bytes_ = 0, min(worker.bytes_ + 2, there)
        return Reason.DIGEST_MISMATCH if worker.bytes_ >= STEPS and parent.lies else None


@pytest.mark.parametrize("worst", [False, True], ids=["faults end", "all peers lie or hang"])
@pytest.mark.parametrize("seed", range(6))
def test_a_fleet_stages_whatever_its_peers_do(seed: int, *, worst: bool) -> None:
    Game(seed, worst=worst).play()


def none(*_: object) -> set[str]:
    return set()


def anything_at_once(*_: object) -> planning.PeerPlan:
    return NO_PLAN


def never(*_: object) -> bool:
    return False


MISTAKES: dict[str, tuple[str, object]] = {
    "refused peers are asked again": ("peers.refused_by", none),
    "a worker that refuses peers never reads the store": ("peers.MOST_REFUSED", 1000),
    "a worker may serve all others": ("peers.FAN_OUT", 1000),
    "any number reads the store": ("peers.PeerPlan", anything_at_once),
    "zones are ignored": ("peers._Holders.is_near", never),
    "a whole zone reads across": ("peers._Holders.other_begins", never),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_games_find_mistakes_of_the_plan(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wrong = MISTAKES[mistake]
    monkeypatch.setattr(f"fleet_operator.core.{place}", wrong)

    def plays() -> None:
        for seed in range(6):
            Game(seed, worst=True).play()

    with pytest.raises(AssertionError):
        plays()
