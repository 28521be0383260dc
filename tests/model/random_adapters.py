"""Random requests and faults of adapters: two names, and workers short of slots and memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.model.fake_pods import FakePod
from tests.model.fake_state import FakeAdapter, digest_of
from tests.model.odd_one import OddOne
from tests.model.simulator import Simulation
from tests.model.swarm import SLOTS

NAMES = ("lora", "math")
QUIET = NAMES[1]
PATIENCE_SECONDS = 20.0
"""How long a quiet trainer waits for the outcome."""
ROOM_FOR_PINS = 3
"""The number of versions of adapters that the status of most simulated fleets holds."""
UNSEEN = "10"
"""No version before it is as high."""


class RandomAdapters:
    """Its random numbers are its own, so that it changes no other part of a history."""

    def __init__(self, fleet: Simulation, odd: OddOne) -> None:
        self.fleet, self.odd = fleet, odd
        self.chance = Random(f"adapters of {fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.copies = Random(f"copies of adapters of {fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.known: set[str] = set()
        self.waits_until = 0.0
        self.actions: list[tuple[float, Callable[[], None]]] = [
            (0.05, self.publish),
            (0.02, self.name_digest),
            (0.02, self.delete),
            (0.02, self.suspend),
            (0.02, self.spoil),
            (0.03, self.use_slots),
            (0.03, self.fail_in_engine),
            (0.02, self.crowd),
            (0.02, self.leave_unfinished),
        ]
        self.kinds = [*(action for _, action in self.actions), self.publish, self.publish_next]
        # Some histories have no adapters, and some a quiet trainer of one.
        quiet = [(0.3, self.publish_next), (0.1, self.return_to_other_files)]
        self.kinds += [self.return_to_other_files, self.name_like_model, self.leave_unfinished]
        self.kinds += [self.create_again, self.create_again, self.rewrite_and_create_again]
        self.kinds += [self.restart_on_unfinished, self.change_slots, self.drive_by_hand]
        self.kinds += [self.publish_both_spoilt]
        self.all = self.actions
        self.actions = self.chance.choice([[], [], self.actions, quiet])

    def act_often(self) -> None:
        """The history is about adapters."""
        self.actions = self.all

    def act_at_random(self, scale: float) -> None:
        """Let happen what may."""
        for chance, action in self.actions if self.fleet.now >= self.waits_until else ():
            if self.chance.random() < chance * scale:
                action()

    def publish(self) -> None:
        """Any version of any adapter, from any folder: a step back, too, which is permitted or not."""
        name, version = self.chance.choice(NAMES), str(self.chance.randint(1, 9))
        fields: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            fields["rollbackTo"] = version
        if self.chance.random() < 0.2:
            folder = self.chance.choice([name, f"other-{name}"])
            fields["source"] = {"path": f"/weights/{folder}/step_{{version}}"}
        self.fleet.publish_adapter(name, version, **fields)
        self._write(self._path(name))

    def _write(self, path: str) -> None:
        """The first time that a version is published it may get the files of the one before it."""
        folder, _, number = path.rpartition("step_")
        if path not in self.known and number != "1" and self.copies.random() < 0.2:
            self.fleet.note("trainer", f"writes the files of the version before to {path}")
            before = f"{folder}step_{int(number) - 1}"
            self.fleet.files.copy(before, path, self.fleet.now)
        self.known.add(path)

    def create_again(self) -> None:
        """The WeightVersion of an adapter is deleted and made again."""
        for name in self._some_name():
            spec = self.fleet.adapter_spec(name)
            self.fleet.delete_adapter(name)
            source = {"path": spec.source.path}
            self.fleet.publish_adapter(name, spec.version, runID=spec.run_id, source=source)

    def name_usual_path(self) -> None:
        """An adapter that names another path names its own one again."""
        for name in self._some_name():
            usual = f"/weights/{name}/step_{{version}}"
            if self.fleet.adapter_spec(name).source.path != usual:
                self._change(name, source={"path": usual})

    def return_to_served(self) -> None:
        """The trainer goes back to a version that some worker serves."""
        served = [(n, a) for w in self.fleet.workers.values() for n, a in w.adapters.items()]
        found = [(n, a) for n, a in served if n in self._published()]
        if found:
            name, adapter = self.chance.choice(found)
            version = adapter.version
            self.fleet.publish_adapter(name, version, rollbackTo=version, runID=adapter.run_id)

    def rewrite_and_create_again(self) -> None:
        """Before that the files were written over. It may name another path first."""
        for name in self._some_name():
            spec, path = self.fleet.adapter_spec(name), self._path(name)
            if not self.fleet.is_rewritten(path):
                self.fleet.rewrite(path)
            self.fleet.delete_adapter(name)
            source = {"path": spec.source.path}
            other = {"path": f"/weights/other-{name}/step_{{version}}"}
            first = self.chance.choice([source, other])
            self.fleet.publish_adapter(name, spec.version, runID=spec.run_id, source=first)

    def restart_on_unfinished(self) -> None:
        """The files of an adapter lose the last one, and a worker restarts."""
        for name in self._some_name():
            self.fleet.leave_unfinished(self._path(name))
            if pod := self._some_pod():
                self.fleet.kill(pod)

    def publish_both_spoilt(self) -> None:
        """One worker cannot read the next versions of both adapters."""
        if pod := self._some_pod():
            for name in NAMES:
                self.fleet.publish_adapter(
                    name, version := str(self.chance.randint(1, 9)), rollbackTo=version
                )
                self.fleet.spoil_path(self._path(name), pod)

    def change_slots(self) -> None:
        """The fleet has slots for other numbers of adapters."""
        most = self.chance.choice([0, 1, 2])
        self.fleet.change_fleet(f"sets slots for {most} adapters", adapters={"max": most})

    def drive_by_hand(self) -> None:
        """A client of a worker's own port has loaded other files of an adapter than the pinned ones, before
        the worker is admitted.
        """
        stored = self.fleet.fleet_stored.pinned_adapters
        for name in self._some_name():
            pod = self._some_pod()
            spec, path = self.fleet.adapter_spec(name), self._path(name)
            known = (name, spec.version, spec.run_id) in {
                (p.adapter, p.version, p.run_id) for p in stored
            }
            if pod is None or pod.worker.admitted or pod.worker.generates or not known:
                continue
            calls = [*self.fleet.leader.todo, *(f.action for f in self.fleet.wire.flights())]
            if any(getattr(c, "pod_uid", "") == pod.uid for c in calls):
                continue  # it may be its admission
            other = f"{self.fleet.files.first_at(path)}~rewritten"
            self.fleet.note("user", f"gives other files of adapter {name} to {pod.name}")
            pod.worker.adapters[name] = FakeAdapter(spec.version, spec.run_id, path, other)

    def name_like_model(self) -> None:
        """An adapter has the name of the base model for a while: it is refused."""
        if self.fleet.adapter_uid("m"):
            self.fleet.delete_adapter("m")
        else:
            self.fleet.publish_adapter("m", "1")

    def publish_next(self) -> None:
        """A quiet trainer publishes one version after the other, and waits for the outcome."""
        uid = self.fleet.adapter_uid(QUIET)
        version = 1 + int(self.fleet.adapter_spec(QUIET).version) if uid else 1
        if version < int(UNSEEN):
            self.fleet.publish_adapter(QUIET, str(version))
            self._write(self._path(QUIET))
            self.waits_until = self.fleet.now + PATIENCE_SECONDS

    def return_to_other_files(self) -> None:
        """It wants the first version again, after the files were written over and most processes have
        restarted.
        """
        uid = self.fleet.adapter_uid(QUIET)
        if uid is None or int(self.fleet.adapter_spec(QUIET).version) <= ROOM_FOR_PINS:
            return
        path = self._path(QUIET).rpartition("_")[0] + "_1"
        if not self.fleet.is_rewritten(path):
            self.fleet.rewrite(path)
        for pod in list(self.fleet.pods.values()):
            if pod.deleted_at is None and self.chance.random() < 0.8:
                self.fleet.kill(pod)
        self.fleet.publish_adapter(QUIET, "1", rollbackTo="1")
        self.waits_until = self.fleet.now + 3 * PATIENCE_SECONDS

    def publish_unseen(self) -> None:
        """Each adapter gets a version that no worker has seen, so that no pin is in its way."""
        for name in self._published():
            self.fleet.publish_adapter(name, UNSEEN, suspend=False)

    def name_digest(self) -> None:
        """A digest is named for a version later on: that of its files now, or of others."""
        for name in self._some_name():
            there = self.fleet.files.at(self._path(name))
            weights = self.chance.choice([there, f"{there}~rewritten", None])
            self._change(name, digest=weights and digest_of(weights))

    def delete(self) -> None:
        for name in self._some_name():
            self.fleet.delete_adapter(name)

    def suspend(self) -> None:
        for name in self._some_name():
            self._change(name, suspend=self.chance.random() < 0.5)

    def resume(self) -> None:
        """No version is held back any more, and none has the name of the base model."""
        if self.fleet.adapter_uid("m"):
            self.fleet.delete_adapter("m")
        spec = self.fleet.desired.fleet_spec
        if spec.adapters.max != SLOTS:
            self.fleet.change_fleet(f"sets slots for {SLOTS} adapters", adapters={"max": SLOTS})
        if spec.update.is_held and not all(w.has_slots for w in self.fleet.workers.values()):
            self.fleet.change_fleet("lets the operator replace pods", update={})
        for name in self._published():
            self._change(name, suspend=False)

    def spoil(self) -> None:
        """The files of an adapter are damaged for one worker."""
        for name in self._some_name():
            if pod := self._some_pod():
                self.fleet.spoil_path(self._path(name), pod)

    def use_slots(self) -> None:
        if pod := self._some_pod():
            self.fleet.use_adapter_slots(pod, self.chance.choice([2.0, 30.0]))

    def fail_in_engine(self) -> None:
        if pod := self._some_pod():
            self.fleet.fail_adapters(pod, self.chance.choice([1, 3]))

    def leave_unfinished(self) -> None:
        """A trainer publishes an adapter, and dies before it has written its last file."""
        for name in self._some_name():
            version = str(self.chance.randint(1, 9))
            self.fleet.publish_adapter(name, version, rollbackTo=version)
            self.fleet.leave_unfinished(self._path(name))

    def crowd(self) -> None:
        if pod := self._some_pod():
            self.fleet.leave_room_for_adapters(pod, self.chance.choice([2, 3, 4]))

    def _change(self, name: str, **fields: Any) -> None:
        spec = self.fleet.adapter_spec(name)
        self.fleet.publish_adapter(name, spec.version, **{"digest": spec.digest} | fields)

    def _published(self) -> list[str]:
        return [name for name in NAMES if self.fleet.adapter_uid(name)]

    def _some_name(self) -> list[str]:
        """One of the published ones, if there is any."""
        names = self._published()
        return [self.chance.choice(names)] if names else []

    def _path(self, name: str) -> str:
        spec = self.fleet.adapter_spec(name)
        return str(spec.source.resolve(spec.version))

    def _some_pod(self) -> FakePod | None:
        return self.odd.some_pod(self.chance)
