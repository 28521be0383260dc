"""Random histories of a run next to its collectors: no version that something needs is ever deleted.

A worker may still read it, or it is applied, desired, the one before, or a base of one of these.

Real are the collector, the directories, and the objects of a store in memory. The trainer, the operator's status, which
is late, and the workers are of this model. It moves on before each rename, each mark, and each removal of a file or an
object. There a collector is killed, too, or a second one runs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import obstore
import pytest
from obstore.exceptions import PreconditionError
from obstore.store import MemoryStore
from tests.support.collector import (
    a_fleet,
    a_weight_version,
    an_index,
    names_in,
    objects,
    write_versions,
)

from fleet_collector import collection, plan, prefix
from fleet_collector.collection import Objects, collect
from fleet_collector.prefix import Prefix
from fleet_collector.volume import Folder
from fleet_worker.protocol import ASIDE_MARK
from rlfleet.deltas.layout import INDEX_FILE

HISTORIES = 4
LATE = 6
"""Ticks by which a status is late at most. A collector waits longer."""


class Killed(BaseException):
    """The process of a collector is gone: no code of it runs after that."""


class WrongDeletion(AssertionError):
    pass


@dataclass
class FakeWorker:
    """One worker. `reads`: what it has open, and for how long: the inodes of directories, or the ETags of objects."""

    loaded: int = 1
    staged: int = 1
    goal: int = 1
    reads: frozenset[int | str] = frozenset()
    left: int = 0
    starts: bool = False


@dataclass
class World:
    """A run whose versions are directories."""

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
        self.write(1)
        self.store()

    # --- the volume --------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        return names_in(self.folder)

    def is_there(self, name: str) -> bool:
        return (self.folder / name).exists()

    def write(self, version: int, base: int | None = None) -> None:
        write_versions(self.folder, version, base=base)

    def base_of(self, name: str) -> int:
        """0 for a full version, and for one that cannot be read."""
        index = self.folder / name / INDEX_FILE
        return _base_in(index.read_bytes()) if index.exists() else 0

    def opened(self, name: str) -> set[int | str]:
        """The parts of a version that a worker has open. Errors: FileNotFoundError."""
        return {(self.folder / name).stat().st_ino}

    def is_whole(self, name: str) -> bool:
        return "model.safetensors" in names_in(self.folder / name)

    # --- what is true ------------------------------------------------------------------------------

    def chain(self, version: int) -> list[str]:
        """The directories that a worker reads for a version; the last one may be missing."""
        names = []
        while version and f"step_{version}" not in names:
            names.append(f"step_{version}")
            version = self.base_of(names[-1])
        return names

    def check(self, name: str, removed: set[int | str]) -> None:
        """Fail if a removal takes parts of a version that something needs, or of a base of it."""
        if any(removed & worker.reads for worker in self.workers):
            raise WrongDeletion(f"a worker reads {name}, seed {self.seed}")
        needed = {self.before: "left last", self.spec: "desired", self.applied: "applied"}
        for version, why in needed.items():
            if name in self.chain(version):
                raise WrongDeletion(f"{name} of {version} is {why}, seed {self.seed}")
        if name == f"step_{self.newest}" and self.newest > self.asked:
            raise WrongDeletion(f"{name} is not published yet, seed {self.seed}")

    # --- what happens ------------------------------------------------------------------------------

    def tick(self) -> None:
        act = self.random.random()
        rests = self.spec == self.applied
        if act < (0.5 if rests else 0.02):
            self.publish()
        elif act < (0.7 if rests else 0.04):
            named = [int(n[5:]) for n in self.names() if n.startswith("step_")]
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
        if not self.is_there(f"step_{base}"):
            base = None
        self.write(self.newest, base)

    def want(self, version: int) -> None:
        self.generation += version != self.spec
        self.spec = version

    def open(self, worker: FakeWorker, version: int) -> bool:
        """Open all directories of a version. Returns: whether they were there."""
        try:
            found = [self.opened(name) for name in self.chain(version)]
        except FileNotFoundError:
            return False
        worker.goal, worker.reads = version, frozenset().union(*found)
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
        paths = [f"{self.place}/step_{version}" for version in sorted(of_fleet["used"])]
        weights = a_weight_version(
            self.place, str(self.spec), applied=str(status["applied"]), retention={"keep": 1}
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
            collect(self.look, [self.place], self.wait)
        except Killed:
            pass
        finally:
            self.running.pop()


class StoredWorld(World):
    """A run whose versions are in an object store."""

    @cached_property
    def objects(self) -> MemoryStore:
        return MemoryStore()

    @property
    def place(self) -> str:
        return "s3://weights/run"

    def listed(self, name: str = "") -> dict[str, Any]:
        """The objects of a version, or of all, by what is behind the prefix."""
        below = f"run/{name}/" if name else "run/"
        found = obstore.list(self.objects, below.rstrip("/")).collect()
        return {o["path"][len(below) :]: o for o in found if o["path"].startswith(below)}

    def names(self) -> list[str]:
        found = [(*path.partition("/")[::2], each) for path, each in self.listed().items()]
        marked = {name for name, file, each in found if self.takes(file, each)}
        return sorted({n for n, file, _ in found if not file.startswith(ASIDE_MARK)} - marked)

    def is_there(self, name: str) -> bool:
        found = self.listed(name)
        is_empty = all(file.startswith(ASIDE_MARK) for file in found)
        return not is_empty and not any(self.takes(*each) for each in found.items())

    def takes(self, file: str, each: Any) -> bool:
        """Whether an object takes its version from workers."""
        return file.startswith(ASIDE_MARK) and each["size"] > 0

    def write(self, version: int, base: int | None = None) -> None:
        files = {"model.safetensors": b"w" * 100, "config.json": b"{}"}
        if base is not None:
            files[INDEX_FILE] = an_index(version, base).encode()
        for name, content in files.items():
            obstore.put(self.objects, f"run/step_{version}/{name}", content)

    def base_of(self, name: str) -> int:
        if INDEX_FILE not in self.listed(name):
            return 0
        return _base_in(bytes(obstore.get(self.objects, f"run/{name}/{INDEX_FILE}").bytes()))

    def opened(self, name: str) -> set[int | str]:
        if not self.is_there(name):
            raise FileNotFoundError(name)
        if not self.is_whole(name):
            raise WrongDeletion(
                f"a worker takes the rest of {name} for a version, seed {self.seed}"
            )
        return {each["e_tag"] for each in self.listed(name).values()}

    def is_whole(self, name: str) -> bool:
        return {"model.safetensors", "config.json"} <= self.listed(name).keys()

    def remove(self, place: str) -> None:
        """Delete an object, except for those that something needs."""
        name, _, file = place.removeprefix("run/").partition("/")
        found = self.listed(name).get(file)
        if found is None:
            return
        if not file.startswith(ASIDE_MARK):
            self.check(name, {found["e_tag"]})
        obstore.delete(self.objects, place)
        self.deleted += file == "config.json"


def _base_in(index: bytes) -> int:
    return int(json.loads(index)["metadata"]["base_version"])


@pytest.fixture(params=[World, StoredWorld], ids=["volume", "store"])
def world_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[int], World]:
    """Makes a world whose collectors are interrupted at each of their steps."""
    made: list[World] = []
    rename = Folder._rename

    def interrupted(folder: Folder, old: str, new: str) -> None:
        made[-1].step()
        rename(folder, old, new)

    def removed(folder: Folder, place: str) -> None:
        world = made[-1]
        world.step()
        name = place.removeprefix(".").partition(".")[0]
        try:
            for file in names_in(world.folder / place):
                world.check(name, world.opened(place))
                (world.folder / place / file).unlink()
                world.step()
            (world.folder / place).rmdir()
            world.deleted += 1
        except FileNotFoundError:
            return

    put = Prefix._put

    def put_in_turn(prefix: Prefix, *arguments: Any) -> None:
        made[-1].step()
        put(prefix, *arguments)

    def removed_objects(prefix: Prefix, places: Iterable[str]) -> None:
        world = made[-1]
        assert isinstance(world, StoredWorld)
        for place in places:
            world.step()
            world.remove(f"{prefix._begin}{place}")

    monkeypatch.setattr(Folder, "_rename", interrupted)
    monkeypatch.setattr(Folder, "_remove", removed)
    monkeypatch.setattr(Prefix, "_put", put_in_turn)
    monkeypatch.setattr(Prefix, "_remove", removed_objects)
    monkeypatch.setattr(prefix, "_asked", lambda _, work: _asked_at_once(work))
    monkeypatch.setattr(
        prefix, "opened_store", lambda _: (cast("StoredWorld", made[-1]).objects, "run")
    )

    def make(seed: int) -> World:
        made.append(request.param(tmp_path / str(len(made)), seed))
        return made[-1]

    return make


def play(world: World) -> None:
    """Thirty runs of a collector, each in the middle of the work of the fleet."""
    for _ in range(30):
        for _ in range(world.random.randint(1, 40)):
            world.tick()
        world.collect()
    for name in world.names():
        if name.startswith("step_"):
            assert world.is_whole(name), f"seed {world.seed}"


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


MUTANTS_IN_A_STORE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "workers do not look for marks": lambda m: m.setattr(StoredWorld, "takes", lambda *_: False),
    "the mark goes first": lambda m: m.setattr(Prefix, "_empty", _emptied_with_the_mark_first),
    "what is decided can come back": lambda m: m.setattr(
        obstore,
        "put",
        lambda *a, mode="overwrite", **o: _put(*a, mode=_without_condition(mode), **o),
    ),
}
_put = obstore.put


def _without_condition(mode: Any) -> Any:
    """All but the one by which the collector sees whether the store keeps conditions."""
    return mode if isinstance(mode, dict) and mode["e_tag"] == '"0"' else "overwrite"


def _emptied_with_the_mark_first(
    place: Prefix, name: str, mark: str, decided: Iterable[Any]
) -> None:
    place._remove([f"{name}/{mark}", *(f"{name}/{each.name}" for each in decided)])


def _asked_at_once(work: Callable[[], Any]) -> Any:
    """Ask the store in this thread."""
    try:
        return work()
    except PreconditionError as error:
        raise FileNotFoundError from error


def _ends_without_a_look(work: Any, *_: object) -> None:
    for directory in [*work.aside]:
        work.aside.remove(directory)
        with suppress(FileNotFoundError):  # another collector was faster
            work._folder.delete(directory)


@pytest.mark.long
@pytest.mark.parametrize("world_of", [World], indirect=True, ids=["volume"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_collector_with_this_mistake_is_found_out(
    mutant: str, world_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        play_all(world_of, range(40))


@pytest.mark.long
@pytest.mark.parametrize("world_of", [StoredWorld], indirect=True, ids=["store"])
@pytest.mark.parametrize("mutant", MUTANTS_IN_A_STORE)
def test_a_collector_with_this_mistake_in_a_store_is_found_out(
    mutant: str, world_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS_IN_A_STORE[mutant](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        play_all(world_of, range(40))
