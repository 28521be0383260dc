"""Random histories of a run next to its collectors: no version that something needs is ever deleted.

A worker may still read it, or it is applied, desired, the one before, or a base of one of these.

Real are the collector, the directories, and the objects of a store in memory. The trainer, the operator's status, which
is late, the workers, and the times of files are of this model. It moves on before each rename, each mark, and each
removal of a file or an object. There a collector is killed, too, or a second one runs. In half of the histories the
clocks jump by up to days, and two machines write, each with its own clock.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
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
from fleet_collector.needs import claims_on
from fleet_collector.prefix import Prefix
from fleet_collector.volume import Folder
from fleet_worker.protocol import ASIDE_MARK
from rlfleet_resources.weight_files import INDEX_FILE

HISTORIES = 12
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
class FakeProcess:
    """A collector. `spec`: the version that the spec has asked for at its last look."""

    spec: int
    killed: bool = False


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
    running: list[FakeProcess] = field(default_factory=list)
    """Those of collectors, the one that runs now last."""
    bases: dict[int, int] = field(default_factory=dict)
    """Version → the base of its delta; 0 for a full version."""
    clocks: list[int] = field(default_factory=lambda: [10**6] * 2)
    """Of the machines that write, in seconds ahead of the ticks. In an honest history both are the same."""
    deleted: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a model
        self.clocks_jump = self.random.random() < 0.5
        self.haste = self.random.choice([0.1, 0.5])
        """How soon the trainer asks for what it has written."""
        self.silent_until = 0
        self.write(1)
        self.store()

    @property
    def now(self) -> int:
        """The time that a file gets which is written now, in seconds."""
        return len(self.stored) + self.random.choice(self.clocks)

    # --- the volume --------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        return names_in(self.folder)

    def undecided(self) -> dict[str, str]:
        """The versions under their names, and those that are aside and can come back → their bases."""
        found = (re.fullmatch(r"\.?(step_\d+)(\.trash-.*)?", name) for name in self.names())
        return {each[1]: self.base_in(each[0]) for each in found if each}

    def base_in(self, place: str) -> str:
        index = self.folder / place / INDEX_FILE
        if not index.exists():
            return ""
        return f"step_{json.loads(index.read_text())['metadata']['base_version']}"

    def is_there(self, name: str) -> bool:
        return (self.folder / name).exists()

    def write(self, version: int, base: int = 0) -> None:
        """Write a version, also over an old one."""
        made = self.folder / f"step_{version}"
        shutil.rmtree(made, ignore_errors=True)
        write_versions(self.folder, version, base=base or None)
        self.bases[version], now = base, self.now
        for path in (*made.iterdir(), made):
            os.utime(path, (now, now))

    def opened(self, name: str) -> set[int | str]:
        """The parts of a version that a worker has open. Errors: FileNotFoundError."""
        return {(self.folder / name).stat().st_ino}

    def has_another(self, name: str, parts: set[int | str]) -> bool:
        """Whether a version has been written again under a name, and these are parts of the former one."""
        return self.is_there(name) and not parts & self.opened(name)

    def is_whole(self, name: str) -> bool:
        return "model.safetensors" in names_in(self.folder / name)

    # --- what is true ------------------------------------------------------------------------------

    def chain(self, version: int) -> list[str]:
        """The directories that a worker reads for a version; the last one may be missing."""
        names = []
        while version and f"step_{version}" not in names:
            names.append(f"step_{version}")
            version = self.bases[version]
        return names

    def check(self, name: str, removed: set[int | str]) -> None:
        """Fail if a removal takes parts of a version that something needs, or of a base of it."""
        if any(removed & worker.reads for worker in self.workers):
            raise WrongDeletion(f"a worker reads {name}, seed {self.seed}")
        if self.has_another(name, removed):
            return
        needed = {self.before: "left last", self.applied: "applied"}
        if self.is_there(f"step_{self.spec}"):  # not one that the spec has named while it was aside
            needed[self.spec] = "desired"
        for version, why in needed.items():
            if name in self.chain(version):
                raise WrongDeletion(f"{name} of {version} is {why}, seed {self.seed}")
        if name == f"step_{self.newest}" and self.newest > self.asked and not self.clocks_jump:
            raise WrongDeletion(f"{name} is not published yet, seed {self.seed}")
        there = self.undecided()
        if name not in there and name in there.values():
            raise WrongDeletion(f"a delta of {name} stays without it, seed {self.seed}")

    def check_decision(self, name: str) -> None:
        """Fail if a collector decides to delete what its last look has shown to be needed."""
        if self.is_there(name):
            return  # a new one
        asked = self.running[-1].spec
        if name in self.chain(asked):
            raise WrongDeletion(f"{name} of {asked} is asked for, seed {self.seed}")
        # With wrong clocks nothing shows that a run counts from 0 again before it asks for a version.
        is_known = not self.clocks_jump or self.newest >= min(asked, self.applied)
        if name == f"step_{self.newest}" and self.newest > self.asked and is_known:
            raise WrongDeletion(f"{name} is not published yet, seed {self.seed}")

    # --- what happens ------------------------------------------------------------------------------

    def tick(self) -> None:
        act = self.random.random()
        rests = self.spec == self.applied
        self.jump()
        if act < (self.haste if rests else 0.01):
            if len(self.stored) >= self.silent_until:
                self.publish()
        elif act < (0.7 if rests else 0.02):
            named = [int(name[5:]) for name in self.undecided()]
            asked = sorted(n for n in named if n <= self.asked) or [self.applied]
            # Often the oldest one, since it goes next. It may be aside already.
            self.want(self.random.choice([asked[0], self.random.choice(asked)]))
            if act < (0.6 if rests else 0.015):  # taken back at once, and a worker reads it already
                self.work(self.workers[0])
                self.want(self.applied)
        elif act < (0.7 if rests else 0.04):
            self.want(self.applied)
        elif act < (0.72 if rests else 0.041):
            self.count_again()
        elif act < (0.77 if rests else 0.06):  # a restart, on what is applied now
            worker = self.random.choice(self.workers)
            worker.starts = self.open(worker, self.applied)
        self.roll_out()
        self.store()

    def jump(self) -> None:
        """Set a clock, in some ticks."""
        if self.clocks_jump and self.random.random() < 0.02:
            seconds = self.random.choice([0, 10, 3600, 3 * 86400])
            machine, way = self.random.randrange(2), self.random.choice([-1, 1])
            self.clocks[machine] = 10**6 + way * seconds

    def roll_out(self) -> None:
        for worker in self.workers:
            self.work(worker)
        if all(worker.staged == self.spec and not worker.reads for worker in self.workers):
            if self.spec != self.applied:
                self.before, self.applied = self.applied, self.spec
            for worker in self.workers:
                worker.loaded = self.spec

    def publish(self) -> None:
        """Ask for what is written; the next version is written ahead."""
        self.asked = self.newest
        self.want(self.asked)
        self.newest += 1
        base = self.random.choice([0, self.newest - 1])
        self.write(self.newest, base if self.is_there(f"step_{base}") else 0)

    def count_again(self) -> None:
        """A new run writes over the versions of the last one. It may be long before it asks for one."""
        if self.newest < 4:
            return
        self.newest, self.asked = 1, 0
        self.write(1)
        if self.clocks_jump:
            self.publish()
        else:
            self.silent_until = len(self.stored) + 40

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
        worker.left = self.random.choice([1, 2, 3, 8 * LATE])
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
        self.running[-1].spec = self.spec
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
        if self.running[-1].killed:
            raise Killed
        for _ in range(self.random.choice([0, 0, 1, 6])):
            self.tick()
        if self.random.random() < 0.1 and len(self.running) < 2:
            self.collect()
        if self.random.random() < 0.03:
            self.running[-1].killed = True
            raise Killed

    def collect(self) -> None:
        self.running.append(FakeProcess(self.spec))
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

    @cached_property
    def times(self) -> dict[str, datetime]:
        """ETag → when the object was written, by the clock of the store."""
        return {}

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

    def undecided(self) -> dict[str, str]:
        files = [(*path.partition("/")[::2], each["size"]) for path, each in self.listed().items()]
        decided = {n for n, file, size in files if file.startswith(ASIDE_MARK) and size > 5}
        names = {name for name, file, _ in files if file == "config.json"} - decided
        return {name: f"step_{self.bases[int(name[5:])]}" for name in names}

    def write(self, version: int, base: int = 0) -> None:
        files = {"model.safetensors": b"w" * 100, "config.json": b"{}"}
        if base:
            files[INDEX_FILE] = an_index(version, base).encode()
        self.bases[version], now = base, datetime.fromtimestamp(self.now, UTC)
        for name, content in files.items():
            put = obstore.put(self.objects, f"run/step_{version}/{name}", content)
            self.times[str(put["e_tag"])] = now

    def count_again(self) -> None:
        """A run that writes over another one may lose what it writes during a deletion, which is reported."""

    def opened(self, name: str) -> set[int | str]:
        if not self.is_there(name):
            raise FileNotFoundError(name)
        if not self.is_whole(name):
            raise WrongDeletion(
                f"a worker takes the rest of {name} for a version, seed {self.seed}"
            )
        return {each["e_tag"] for each in self.listed(name).values()}

    def has_another(self, name: str, parts: set[int | str]) -> bool:
        return False

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


@pytest.fixture(params=[World, StoredWorld], ids=["volume", "store"])
def world_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[int], World]:
    """Makes a world whose collectors are interrupted at each of their steps."""
    made: list[World] = []
    rename = Folder._rename

    def interrupted(folder: Folder, old: str, new: str) -> None:
        made[-1].step()
        if ".deleting-" in new:
            made[-1].check_decision(new.removeprefix(".").partition(".")[0])
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

    monkeypatch.setattr(Folder, "_rename", interrupted)
    monkeypatch.setattr(Folder, "_remove", removed)
    _interrupt_stores(made, monkeypatch)

    def make(seed: int) -> World:
        made.append(request.param(tmp_path / str(len(made)), seed))
        return made[-1]

    return make


def _interrupt_stores(made: list[World], monkeypatch: pytest.MonkeyPatch) -> None:
    put, objects_of = Prefix._put, prefix._objects

    def put_in_turn(prefix: Prefix, mark: str, content: bytes, *condition: Any) -> None:
        made[-1].step()
        if content.startswith(b"{"):
            made[-1].check_decision(mark.partition("/")[0])
        put(prefix, mark, content, *condition)

    def removed_objects(prefix: Prefix, places: Iterable[str]) -> None:
        world = made[-1]
        assert isinstance(world, StoredWorld)
        for place in places:
            world.step()
            world.remove(f"{prefix._begin}{place}")

    monkeypatch.setattr(Prefix, "_put", put_in_turn)
    monkeypatch.setattr(Prefix, "_remove", removed_objects)

    def with_times(*arguments: Any) -> Iterator[Any]:
        times = cast("StoredWorld", made[-1]).times
        for each in objects_of(*arguments):
            yield each | {"last_modified": times.get(each["e_tag"], each["last_modified"])}

    monkeypatch.setattr(prefix, "_objects", with_times)
    monkeypatch.setattr(prefix, "_asked", lambda _, work: _asked_at_once(work))
    monkeypatch.setattr(
        prefix, "opened_store", lambda _: (cast("StoredWorld", made[-1]).objects, "run")
    )


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
    "a base goes before its delta": lambda m: m.setattr(
        plan, "_bases_last", lambda found, _: found
    ),
    "times do not count": lambda m: m.setattr(Folder, "_measured", _without_times),
    "what is asked for does not count": lambda m: m.setattr(
        collection, "claims_on", lambda *a: [replace(c, desired="") for c in claims_on(*a)]
    ),
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
_measured = Folder._measured


def _without_times(folder: Folder, found: plan.Directory) -> plan.Directory:
    return replace(_measured(folder, found), modified_ns=0)


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
        play_all(world_of, range(200))


@pytest.mark.long
@pytest.mark.parametrize("world_of", [StoredWorld], indirect=True, ids=["store"])
@pytest.mark.parametrize("mutant", MUTANTS_IN_A_STORE)
def test_a_collector_with_this_mistake_in_a_store_is_found_out(
    mutant: str, world_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS_IN_A_STORE[mutant](monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        play_all(world_of, range(200))
