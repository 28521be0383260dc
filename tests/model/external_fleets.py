"""Fleets that a trainer drives, promise 16: the operator calls no worker while the trainer holds one.

Promise 9 holds there for each version from each directory: `Ready` is not True while workers serve it
from other files than the first ones. Nor is it True while some have a version from files and others from
a collective, or from two process groups. A trainer that goes back joins a new group, and sends the same
versions with other weights. A worker refuses other files of its version for as long as its process lives.

A worker may start on a ConfigMap that lags behind. The applied version never becomes one that no trainer
has loaded into a process that lives.

When the faults have ended and the trainer has updated the workers, all serve its version, and nothing
needs attention. Versions without a majority are reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from tests.model.fake_state import Ticket, version_in
from tests.model.fake_worker import FakeWorker
from tests.model.faults import Faults
from tests.model.simulator import Simulation

from fleet_worker.protocol import ApplyRequest, Epoch, LoadEffect, LoadRequest, Phase
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import AppliedWeights
from rlfleet_resources.reasons import ConditionReason, ConditionType

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
        self.group = 1
        self.meant: dict[tuple[str, str], str] = {}
        self.loaded: dict[tuple[str, int], set[str]] = {}
        self.config_maps: list[dict[str, str | None]] = []

    def update(
        self,
        *,
        missing: Collection[int] = (),
        directory: bool = True,
        looks: int = 2,
        rewritten_after: int | None = None,
        odd: int | None = None,
    ) -> None:
        """One update. `missing`: ordinals of the workers that keep their weights. `rewritten_after`: so
        many workers have loaded the directory when it is written again. `odd`: ordinal of the worker
        that gets it in the other way.
        """
        self.number += 1
        self.fleet.note("trainer", f"updates to {self.number}")
        for worker in self.fleet.workers.values():
            if worker.phase is Phase.SERVING:
                worker.hold(HELD_SECONDS, holder="trainer")
                worker.renewed_at += HELD_SECONDS
        self.look(looks)
        path = f"/weights/step_{self.number}"
        for loads, pod in enumerate(self.fleet.pods.values()):
            worker = pod.worker
            if loads == rewritten_after:
                self.fleet.rewrite(path)
            all_join = not any(w.admitted for w in self.fleet.workers.values())
            joins = worker.phase is Phase.JOINING and worker.work is None
            joins &= all_join or not directory
            if (worker.phase is Phase.PAUSED or joins) and pod.ordinal not in missing:
                self._load(worker, path if directory is not (pod.ordinal == odd) else "")
        self.look(looks)
        for worker in self.fleet.workers.values():
            if worker.phase is Phase.PAUSED:
                worker.serve()

    def go_back(self) -> None:
        """The trainer continues from an earlier step, and writes or sends the next ones again."""
        self.group += 1
        self.number = max(0, self.number - self.chance.randint(1, 3))
        for step in range(self.number + 1, self.number + 4):
            path = f"/weights/step_{step}"
            if not self.fleet.is_rewritten(path):
                self.fleet.rewrite(path)

    def go_beyond(self) -> None:
        """The trainer writes versions that no worker has served."""
        self.number += 10

    def restart_on_the_last_but_one(self) -> None:
        """All processes end, and start on a ConfigMap that is older than the applied version."""
        if len(self.config_maps) < 2:
            return
        self.fleet.note("fault", "the kubelets have an old ConfigMap")
        for pod in list(self.fleet.pods.values()):
            now = _start_of(pod.worker)
            vars(pod.worker).update(self.config_maps[-2])
            self.fleet.kill(pod)
            vars(pod.worker).update(now)

    def _load(self, worker: FakeWorker, source: str) -> None:
        """A worker loads a version, unless it remembers other files of it."""
        label, run = str(self.number), None if source else f"group-{self.group}"
        weights = self.fleet.files.at(source) if source else f"{label}~sent in {run}"
        if worker.meant.setdefault((label, source or run), weights) != weights:
            return
        worker.effect = LoadEffect(version=label, run_id=run, compared_with=str(worker.label))
        worker.label, worker.weights, worker.source, worker.staged = label, weights, source, None
        worker.run_id = run
        self.loaded.setdefault((worker.uid, worker.restarts), set()).add(label)

    def _ready_is_true(self) -> None:
        """The first files of a version are those that the operator has seen first."""
        fleet = self.fleet
        ready = condition_of(fleet.fleet.conditions, ConditionType.READY)
        is_ready = ready is not None and ready.status == "True"
        for pin in fleet.fleet.pinned:
            self.meant.setdefault((pin.version, str(pin.source.path)), pin.digest)
        served: dict[str, set[str]] = {}
        for worker in fleet.workers.values():
            if not worker.generates or worker.label is None:
                continue
            name = (worker.label, worker.source)
            heard = fleet.leader.heard.get(worker.uid)
            said = (heard.state.version, heard.state.run_id) if heard is not None else None
            known = said == (worker.label, worker.run_id)
            if not is_ready or heard is None or not known or heard.state.digest != worker.digest:
                continue
            served.setdefault(worker.label, set()).add(worker.run_id or "files")
            first = self.meant.setdefault(name, worker.digest) if worker.digest else None
            if first != worker.digest:
                fleet.fail(9, f"Ready is True, and {worker.name} serves {name} from other files")
            if len(served[worker.label]) > 1:
                came = " and ".join(sorted(served[worker.label]))
                fleet.fail(9, f"Ready is True, and {name} is served from {came}")

    def _applied_was_loaded(self, before: AppliedWeights | None) -> None:
        """The applied version changes only to one that a trainer has loaded into a living process."""
        fleet, now = self.fleet, self.fleet.fleet.applied
        if before is None or now is None or now.version in {before.version, "base"}:
            return
        workers = fleet.workers.values()
        loaded = [w.label for w in workers if w.label in self.loaded.get((w.uid, w.restarts), ())]
        if now.version not in loaded:
            fleet.fail(16, f"version {now.version} is applied, and no trainer has loaded it")

    def _note_config_map(self) -> None:
        worker = next(iter(self.fleet.workers.values()), None)
        start = _start_of(worker) if worker is not None else None
        if start is not None and start not in self.config_maps[-1:]:
            self.config_maps.append(start)

    def look(self, times: int) -> None:
        """The operator looks. It must send no call while it knows that the trainer holds workers."""
        fleet = self.fleet
        for _ in range(times):
            for worker in fleet.workers.values():
                worker.compare = _compared
            applied = fleet.fleet.applied
            fleet.reconcile()
            self._ready_is_true()
            self._applied_was_loaded(applied)
            self._note_config_map()
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
        event = chance.choice(["kill", "delete", "operator", "back", "old", "quiet", "quiet"])
        if event == "kill":
            fleet.kill(pod)
        elif event == "delete":
            fleet.delete(pod)
        elif event == "operator":
            fleet.start_operator()
        elif event == "back":
            self.go_back()
        elif event == "old":
            self.restart_on_the_last_but_one()
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
        rewritten_after = chance.randrange(fleet.replicas) if chance.random() < 0.2 else None
        trainer.update(
            missing=missing,
            directory=directory,
            looks=chance.randint(0, 4),
            rewritten_after=rewritten_after,
            odd=0 if chance.random() < 0.1 else None,
        )
    fleet.mend()
    fleet.faults = Faults()
    fleet.look(40)
    trainer.go_beyond()
    trainer.update()
    fleet.look(60)
    ENDINGS[seed % len(ENDINGS)](trainer)
    fleet.look(60)
    last = str(trainer.number)
    serving = [version_in(weights) for weights in fleet.serving]
    if serving != [last] * fleet.replicas or fleet.fleet.applied_version != last:
        fleet.fail(16, f"the trainer has sent {last}, and the workers serve {fleet.serving}")
    if fleet.stalled is not None:
        fleet.fail(16, f"nothing is wrong any more, and Stalled is True: {fleet.stalled.message}")
    calls = len(fleet.wire.sent)
    if fleet.run_quietly() or len(fleet.wire.sent) > calls:
        fleet.fail(16, "the operator writes or calls workers at rest")
    return fleet


def _compared(worker: FakeWorker, request: LoadRequest | ApplyRequest) -> LoadEffect:
    """A load that the operator has asked for has an effect, too."""
    return LoadEffect(version=request.version, compared_with=str(worker.label))


def _start_of(worker: FakeWorker) -> dict[str, str | None]:
    """The weights on which a worker starts, by its ConfigMap."""
    names = ("start_version", "start_source", "start_run_id", "start_digest")
    return {name: getattr(worker, name) for name in names}


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
    """No process remembers what it held. That is reported until the trainer continues from elsewhere."""
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


def a_directory_is_written_between_two_loads(trainer: FakeTrainer) -> None:
    """The last worker has other files. It leaves the Service until the trainer continues."""
    fleet = trainer.fleet
    trainer.update(rewritten_after=fleet.replicas - 1)
    trainer.look(20)
    label = str(trainer.number)
    served = {w.digest for w in fleet.workers.values() if w.generates and w.label == label}
    if fleet.replicas > 2 and len(served) > 1:
        fleet.fail(9, f"two sets of files are served as version {label} by one directory")
    if fleet.stalled is None:
        fleet.fail(9, f"version {label} names two sets of files, and Stalled does not report it")
    trainer.update()


def all_restart_on_an_old_config_map(trainer: FakeTrainer) -> None:
    """They join at the applied version, which no trainer has to send again."""
    trainer.update()
    trainer.look(20)
    trainer.restart_on_the_last_but_one()
    trainer.look(60)


def files_and_received_weights_of_one_name(trainer: FakeTrainer) -> None:
    """They may be different weights: one kind leaves the Service, or no version has a majority."""
    fleet = trainer.fleet
    trainer.update(directory=trainer.chance.random() < 0.5, odd=0)
    trainer.look(20)
    label = str(trainer.number)
    kinds = {bool(w.source) for w in fleet.workers.values() if w.generates and w.label == label}
    if len(kinds) > 1 and fleet.replicas > 2:
        fleet.fail(9, f"version {label} is served from files and from a collective")
    if len(kinds) > 1 and fleet.stalled is None:
        fleet.fail(9, f"version {label} came in two ways, and Stalled does not report it")
    trainer.update()


def one_misses_a_version_that_is_sent_again(trainer: FakeTrainer) -> None:
    """The trainer has joined another group. The worker without the update has other weights of that name."""
    fleet = trainer.fleet
    trainer.update(directory=False)
    trainer.look(20)
    trainer.number, trainer.group = trainer.number - 1, trainer.group + 1
    trainer.update(directory=False, missing={0})
    trainer.look(20)
    groups = {w.run_id for w in fleet.workers.values() if w.generates}
    if fleet.replicas > 2 and len(groups) > 1:
        fleet.fail(9, f"version {trainer.number} of {' and of '.join(map(str, groups))} is served")
    if fleet.replicas == 2 and fleet.stalled is None:
        fleet.fail(
            9, f"version {trainer.number} came in two groups, and Stalled does not report it"
        )
    trainer.update()


def one_is_cut_off_in_an_update(trainer: FakeTrainer) -> None:
    """Its last answer names a load that has ended since. Another one restarts, and joins the majority."""
    fleet = trainer.fleet
    if fleet.replicas < 4:
        return
    cut_off, restarts = fleet.pod(0), fleet.pod(1)
    worker = cut_off.worker
    worker.phase, worker.work = Phase.LOADING, _a_load_by_the_trainer(fleet.now)
    trainer.look(2)
    fleet.cut_off(cut_off)
    worker.phase, worker.work = Phase.SERVING, None
    trainer.update(missing={0})
    fleet.kill(restarts)
    trainer.look(40)
    if not restarts.worker.admitted:
        fleet.fail(16, f"{restarts.name} does not join, and only {cut_off.name} is silent")
    fleet.cut_off(cut_off, cut=False)
    trainer.update()


def an_answer_is_lost_in_an_update(trainer: FakeTrainer) -> None:
    """All but one worker load when their next answers are lost: the update is still in progress."""
    fleet = trainer.fleet
    if fleet.replicas < 3:
        return
    done, *others = [fleet.pod(n) for n in range(fleet.replicas)]
    trainer.update(missing={pod.ordinal for pod in others})
    for pod in others:
        pod.worker.phase = Phase.LOADING
        pod.worker.work = _a_load_by_the_trainer(fleet.now)
        trainer.look(2)
    for pod in others:
        fleet.cut_off(pod)
    trainer.look(4)
    if fleet.stalled is not None:
        fleet.fail(16, f"an update is in progress, and Stalled is True: {fleet.stalled.message}")
    for pod in others:
        fleet.cut_off(pod, cut=False)
        pod.worker.phase, pod.worker.work = Phase.SERVING, None
    if not done.worker.admitted:
        fleet.fail(16, f"{done.name} was updated first, and is fenced in the middle of the update")
    trainer.update()


def _a_load_by_the_trainer(now: float) -> Ticket:
    load = LoadRequest(version="next", holder="trainer", epoch=Epoch(term=0, sequence=0))
    return Ticket(load, step="load", began_at=now, ends_at=now + HELD_SECONDS)


ENDINGS: list[Callable[[FakeTrainer], None]] = [
    one_worker_misses,
    a_joining_worker_receives_the_update,
    half_of_the_workers_miss,
    a_directory_is_written_again,
    a_directory_is_written_between_two_loads,
    all_restart_on_an_old_config_map,
    files_and_received_weights_of_one_name,
    one_misses_a_version_that_is_sent_again,
    one_is_cut_off_in_an_update,
    an_answer_is_lost_in_an_update,
]
