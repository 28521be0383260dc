"""Random histories of a run next to its collectors: no directory that a worker may still read is ever deleted.

Real are the collector and the directories. The trainer, the operator's status, which is late, and the workers are of
this model. It moves on before each rename and each removal of a file. There a collector is killed, too, or a second one
runs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.collector import a_fleet, a_weight_version, names_in, objects, write_versions

from fleet_collector import collection, plan
from fleet_collector.collection import Objects, collect
from fleet_collector.volume import Folder

HISTORIES = 6
LATE = 6
"""Ticks by which a status is late at most. A collector waits longer."""


class Killed(BaseException):
    """The process of a collector is gone: no code of it runs after that."""


class WrongDeletion(AssertionError):
    pass


@dataclass
class FakeWorker:
    """One worker. `reads`: the inodes of the directories that it has open, and for how long."""

    loaded: int = 1
    staged: int = 1
    goal: int = 1
    reads: frozenset[int] = frozenset()
    left: int = 0
    starts: bool = False


@dataclass
class World:
    folder: Path
    seed: int
    spec: int = 1
    applied: int = 1
    before: int = 1
    generation: int = 1
    newest: int = 1
    asked: int = 1
    """The newest version that the trainer has written, and that it has asked for."""
    workers: list[FakeWorker] = field(default_factory=lambda: [FakeWorker(), FakeWorker()])
    stored: list[dict[str, Any]] = field(default_factory=list)
    """The statuses, one for each tick."""
    running: list[dict[str, bool]] = field(default_factory=list)
    """The processes of collectors, the one that runs now last."""
    deleted: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a model
        write_versions(self.folder, 1)
        self.store()

    # --- what is true ------------------------------------------------------------------------------

    def chain(self, version: int) -> list[str]:
        """The directories that a worker reads for a version; the last one may be missing."""
        names = []
        while version and f"step_{version}" not in names:
            names.append(f"step_{version}")
            index = self.folder / names[-1] / "model.safetensors.index.json"
            notes = json.loads(index.read_text())["metadata"] if index.exists() else {}
            version = int(notes.get("base_version", 0))
        return names

    def check(self, place: str) -> None:
        """Fail if a removal takes files from a worker, or those of the applied version."""
        inode = (self.folder / place).stat().st_ino
        if any(inode in worker.reads for worker in self.workers):
            raise WrongDeletion(f"a worker reads {place}, seed {self.seed}")
        if any(place in {name, f".{name}"} for name in self.chain(self.applied)):
            raise WrongDeletion(f"{place} is applied, seed {self.seed}")
        if place.startswith(f".step_{self.newest}.") and self.newest > self.asked:
            raise WrongDeletion(f"{place} is not published yet, seed {self.seed}")

    # --- what happens ------------------------------------------------------------------------------

    def tick(self) -> None:
        act = self.random.random()
        rests = self.spec == self.applied
        if act < (0.5 if rests else 0.02):
            self.publish()
        elif act < (0.7 if rests else 0.04):
            named = [int(n[5:]) for n in names_in(self.folder) if n.startswith("step_")]
            asked = sorted(n for n in named if n <= self.asked) or [self.applied]
            # Often the oldest one, since it goes next.
            self.want(self.random.choice([asked[0], self.random.choice(asked)]))
            if act < 0.6:  # taken back at once, and a worker reads it already
                self.work(self.workers[0])
                self.want(self.applied)
        elif act < (0.7 if rests else 0.08):
            self.want(self.applied)
        elif act < (0.75 if rests else 0.1):  # a restart, on what is applied now
            worker = self.random.choice(self.workers)
            worker.starts = self.open(worker, self.applied)
        for worker in self.workers:
            self.work(worker)
        if all(worker.staged == self.spec and not worker.reads for worker in self.workers):
            if self.spec != self.applied:
                self.before, self.applied = self.applied, self.spec
            for worker in self.workers:
                worker.loaded = self.spec
        self.store()

    def publish(self) -> None:
        """Ask for what is written; the next version is written ahead."""
        self.asked = self.newest
        self.want(self.asked)
        self.newest += 1
        base = self.random.choice([None, self.newest - 1])
        if base is not None and not (self.folder / f"step_{base}").exists():
            base = None
        write_versions(self.folder, self.newest, base=base)

    def want(self, version: int) -> None:
        self.generation += version != self.spec
        self.spec = version

    def open(self, worker: FakeWorker, version: int) -> bool:
        """Open all directories of a version. Returns: whether they were there."""
        try:
            found = [(self.folder / name).stat().st_ino for name in self.chain(version)]
        except FileNotFoundError:
            return False
        worker.goal, worker.reads = version, frozenset(found)
        worker.left = self.random.choice([1, 2, 3, 4 * LATE])
        return True

    def work(self, worker: FakeWorker) -> None:
        worker.left -= 1
        if worker.reads and worker.left <= 0:
            worker.staged, worker.reads = worker.goal, frozenset()
            worker.loaded = worker.goal if worker.starts else worker.loaded
            worker.starts = False
        if not worker.reads and worker.staged != self.spec:
            self.open(worker, self.spec)

    def store(self) -> None:
        """The status that the operator computes now."""
        used = {self.applied, self.before, self.spec}
        for worker in self.workers:
            used |= {worker.loaded, worker.staged, *([worker.goal] if worker.reads else [])}
        if any(worker.starts for worker in self.workers):
            used |= set(self.stored[-1]["used"])
        seen = {"used": used, "applied": self.applied, "before": self.before}
        self.stored.append(seen | {"generation": self.generation})

    # --- collectors ---------------------------------------------------------------------------------

    def look(self) -> Objects:
        self.step()
        status, of_fleet = (
            self.stored[max(0, len(self.stored) - 1 - self.random.randint(0, LATE))]
            for _ in range(2)  # two objects, each written by itself
        )
        paths = [f"{self.folder}/step_{version}" for version in sorted(of_fleet["used"])]
        weights = a_weight_version(
            self.folder, str(self.spec), applied=str(status["applied"]), retention={"keep": 1}
        )
        weights["metadata"]["generation"] = self.generation
        weights["status"]["observedGeneration"] = status["generation"]
        return objects([weights], a_fleet(*paths))

    def wait(self) -> None:
        for _ in range(LATE + 1):
            self.tick()
        self.step()

    def step(self) -> None:
        """Something happens between two steps of a collector."""
        if self.running[-1]["killed"]:
            raise Killed
        for _ in range(self.random.choice([0, 0, 1, 6])):
            self.tick()
        if self.random.random() < 0.1 and len(self.running) < 2:
            self.collect()
        if self.random.random() < 0.03:
            self.running[-1]["killed"] = True
            raise Killed

    def collect(self) -> None:
        self.running.append({"killed": False})
        try:
            outcomes = collect(self.look, [str(self.folder)], self.wait)
            self.deleted += sum(len(o.deleted) for o in outcomes)
        except Killed:
            pass
        finally:
            self.running.pop()


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    """Makes a world whose collectors are interrupted at each of their steps."""
    made: list[World] = []
    rename = Folder._rename

    def interrupted(folder: Folder, old: str, new: str) -> None:
        made[-1].step()
        rename(folder, old, new)

    def removed(folder: Folder, place: str) -> None:
        world = made[-1]
        world.step()
        try:
            for file in names_in(world.folder / place):
                world.check(place)
                (world.folder / place / file).unlink()
                world.step()
            (world.folder / place).rmdir()
        except FileNotFoundError:
            return

    monkeypatch.setattr(Folder, "_rename", interrupted)
    monkeypatch.setattr(Folder, "_remove", removed)

    def make(seed: int) -> World:
        made.append(World(tmp_path / str(len(made)), seed))
        return made[-1]

    return make


def play(world: World) -> None:
    """Thirty runs of a collector, each in the middle of the work of the fleet."""
    for _ in range(30):
        for _ in range(world.random.randint(1, 40)):
            world.tick()
        world.collect()
    for name in names_in(world.folder):
        if name.startswith("step_"):
            assert "model.safetensors" in names_in(world.folder / name), f"seed {world.seed}"


def play_all(world_of: Callable[[int], World], seeds: range) -> int:
    """Returns: how many versions were deleted."""
    deleted = 0
    for seed in seeds:
        world = world_of(seed)
        play(world)
        deleted += world.deleted
    return deleted


def test_no_directory_that_a_worker_may_still_read_is_ever_deleted(world_of) -> None:
    first = random.randrange(1 << 32)  # noqa: S311 - a model

    assert play_all(world_of, range(first, first + HISTORIES)) > HISTORIES


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "what is in use goes": lambda m: m.setattr(plan, "_names_in", lambda _: {}),
    "bases of deltas go": lambda m: m.setattr(plan, "_bases", lambda *_: {}),
    "what is not older goes": lambda m: m.setattr(plan._Judge, "why_it_stays", lambda *_: ""),
    "it looks once": lambda m: m.setattr(collection._Work, "end", _ends_without_a_look),
    "it does not rename first": lambda m: m.setattr(
        Folder, "put_aside", lambda _, directory: directory.place
    ),
    "what is decided can come back": lambda m: m.setattr(
        Folder, "delete", lambda folder, directory: folder._remove(directory.place)
    ),
}


def _ends_without_a_look(work: Any, *_: object) -> None:
    for directory in [*work.aside]:
        work.aside.remove(directory)
        with suppress(FileNotFoundError):  # another collector was faster
            work._folder.delete(directory)


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_collector_with_this_mistake_is_found_out(
    mutant: str, world_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        play_all(world_of, range(40))
