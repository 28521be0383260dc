"""Fleets that a trainer drives, promise 16: the operator calls no worker while the trainer holds one.

Promise 9 holds there for each version from each directory: `Ready` is not True while workers serve it
from other files than the first ones. A worker refuses such files for as long as its process lives.

When the faults have ended and the trainer has updated the workers, all serve its version, and nothing
needs attention. Versions without a majority are reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from tests.model.fake_worker import FakeWorker
from tests.model.faults import Faults
from tests.model.hunt import hunt_among
from tests.model.simulator import Simulation

from fleet_operator.api.conditions import ConditionReason, ConditionType, condition_of
from fleet_worker.protocol import Phase

HELD_SECONDS = 1000.0
ROUGH = Faults(answer_lost=0.1, call_lost=0.1, answer_late=0.2, stale_view=0.2)


class FakeTrainer:
    """A trainer with its workers: it pauses all that serve, updates them, and resumes them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.fleet = Simulation(
            seed=seed,
            management="External",
            replicas=self.chance.randint(2, 5),
            slow_seconds=self.chance.choice([0.0, 0.0, 3.0]),
        )
        self.number = 0
        self.meant: dict[tuple[str, str], str] = {}

    def update(
        self, *, missing: Collection[int] = (), directory: bool = True, looks: int = 2
    ) -> None:
        """One update. `missing`: ordinals of the workers that keep their weights."""
        self.number += 1
        self.fleet.note("trainer", f"updates to {self.number}")
        for worker in self.fleet.workers.values():
            if worker.phase is Phase.SERVING:
                worker.phase, worker.paused_at = Phase.PAUSED, self.fleet.now
                worker.lease_until = self.fleet.now + HELD_SECONDS
                worker.renewed_at = self.fleet.now + HELD_SECONDS
        self.look(looks)
        for pod in self.fleet.pods.values():
            worker = pod.worker
            all_join = not any(w.admitted for w in self.fleet.workers.values())
            joins = worker.phase is Phase.JOINING and worker.work is None
            joins &= all_join or not directory
            if (worker.phase is Phase.PAUSED or joins) and pod.ordinal not in missing:
                self._load(worker, f"/weights/step_{self.number}" if directory else "")
        self.look(looks)
        for worker in self.fleet.workers.values():
            if worker.phase is Phase.PAUSED:
                worker.serve()

    def go_back(self) -> None:
        """The trainer continues from an earlier step, and writes the next ones again."""
        self.number = max(0, self.number - self.chance.randint(1, 3))
        for step in range(self.number + 1, self.number + 4):
            path = f"/weights/step_{step}"
            if not self.fleet.is_rewritten(path):
                self.fleet.rewrite(path)

    def go_beyond(self) -> None:
        """The trainer writes versions that no worker has served."""
        self.number += 10

    def _load(self, worker: FakeWorker, source: str) -> None:
        """A worker loads a version, unless it remembers other files of it."""
        label = str(self.number)
        weights = self.fleet.files.at(source) if source else label
        if worker.meant.setdefault((label, source), weights) != weights:
            return
        worker.label, worker.weights, worker.source, worker.staged = label, weights, source, None

    def _ready_is_true(self) -> None:
        fleet = self.fleet
        ready = condition_of(fleet.fleet.conditions, ConditionType.READY)
        is_ready = ready is not None and ready.status == "True"
        for worker in fleet.workers.values():
            if not worker.generates or not worker.source or worker.digest is None:
                continue
            name = (str(worker.label), worker.source)
            first = self.meant.setdefault(name, worker.digest)
            heard = fleet.leader.heard.get(worker.uid)
            known = heard is not None and heard.state.digest == worker.digest
            if is_ready and known and first != worker.digest:
                fleet.fail(9, f"Ready is True, and {worker.name} serves {name} from other files")

    def look(self, times: int) -> None:
        """The operator looks. It must send no call while it knows that the trainer holds workers."""
        fleet = self.fleet
        for _ in range(times):
            fleet.reconcile()
            self._ready_is_true()
            held = [w for w in fleet.workers.values() if w.phase is Phase.PAUSED]
            known = {h.state.worker for h in fleet.leader.heard.values() if h.state.pause}
            before = len(fleet.wire.sent)
            fleet.tick(0.5)
            if held and known and not fleet.is_rough:
                fleet.reconcile()
                for call in fleet.wire.sent[before:]:
                    fleet.fail(16, f"{call} while the trainer holds workers")

    def disturb(self) -> None:
        """One thing goes wrong, or nothing does."""
        fleet, chance = self.fleet, self.chance
        pod = chance.choice(list(fleet.pods.values()))
        event = chance.choice(["kill", "delete", "operator", "back", "quiet", "quiet"])
        if event == "kill":
            fleet.kill(pod)
        elif event == "delete":
            fleet.delete(pod)
        elif event == "operator":
            fleet.start_operator()
        elif event == "back":
            self.go_back()
        fleet.faults = ROUGH if chance.random() < 0.4 else Faults()
        self.look(chance.randint(1, 12))


def external_history(seed: int) -> Simulation:
    """One history to its end. Returns: its simulation."""
    trainer = FakeTrainer(seed)
    fleet, chance = trainer.fleet, trainer.chance
    fleet.look(30, seconds=0.5)
    for _ in range(chance.randint(2, 8)):
        trainer.disturb()
        share = chance.choice([0.0, 0.0, 0.3])
        missing = [n for n in range(fleet.replicas) if chance.random() < share]
        directory = chance.random() < 0.7
        trainer.update(missing=missing, directory=directory, looks=chance.randint(0, 4))
    fleet.mend()
    fleet.faults = Faults()
    fleet.look(40)
    trainer.go_beyond()
    trainer.update()
    fleet.look(60)
    ENDINGS[seed % len(ENDINGS)](trainer)
    fleet.look(60)
    last = str(trainer.number)
    if fleet.serving != [last] * fleet.replicas or fleet.fleet.applied_version != last:
        fleet.fail(16, f"the trainer has sent {last}, and the workers serve {fleet.serving}")
    if fleet.stalled is not None:
        fleet.fail(16, f"nothing is wrong any more, and Stalled is True: {fleet.stalled.message}")
    calls = len(fleet.wire.sent)
    if fleet.run_quietly() or len(fleet.wire.sent) > calls:
        fleet.fail(16, "the operator writes or calls workers at rest")
    return fleet


def one_worker_misses(trainer: FakeTrainer) -> None:
    """The others are the majority: it is fenced, and joins at their version."""
    if trainer.fleet.replicas > 2:
        trainer.update(missing={0})


def a_joining_worker_receives_the_update(trainer: FakeTrainer) -> None:
    """Without a directory, a worker that has received the weights is admitted with them."""
    fleet = trainer.fleet
    fleet.kill(fleet.pod(0))
    trainer.update(directory=False, looks=16)


def half_of_the_workers_miss(trainer: FakeTrainer) -> None:
    """No version has a majority. That is reported until the trainer updates all workers."""
    fleet = trainer.fleet
    if fleet.replicas % 2 == 0:
        trainer.update(missing=range(fleet.replicas // 2))
        fleet.look(20)
        if fleet.stalled is None or fleet.stalled.reason is not ConditionReason.VERSIONS_DIFFER:
            fleet.fail(16, f"no version has a majority, and Stalled is {fleet.stalled}")
        trainer.update()


def a_directory_is_written_again(trainer: FakeTrainer) -> None:
    """No process remembers what it held. That is reported until the trainer goes on from elsewhere."""
    fleet = trainer.fleet
    written, others = trainer.number, trainer.number + 1
    trainer.update()
    fleet.look(20)
    for pod in list(fleet.pods.values()):
        fleet.kill(pod)
        fleet.look(60)
    fleet.rewrite(f"/weights/step_{written}")
    trainer.number = written - 1
    trainer.update()
    trainer.look(20)
    if fleet.serving == [f"{written}~rewritten"] * fleet.replicas and (
        fleet.stalled is None or fleet.stalled.reason is not ConditionReason.VERSION_REUSED
    ):
        fleet.fail(
            9, f"other files are served as version {written}, and Stalled is {fleet.stalled}"
        )
    trainer.number = others
    trainer.update()


ENDINGS: list[Callable[[FakeTrainer], None]] = [
    one_worker_misses,
    a_joining_worker_receives_the_update,
    half_of_the_workers_miss,
    a_directory_is_written_again,
]

if __name__ == "__main__":
    hunt_among(external_history, __doc__.partition("\n")[0])
