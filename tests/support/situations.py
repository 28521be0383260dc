"""Situations of a fleet that the command line shows, as the operator's runtime writes them.

Each is a story on `Rig`: the real runtime with fake workers, a fake API server and virtual time. It
leaves the two objects with their statuses, and the log lines of the operator.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import yaml
from tests.support import virtual_time
from tests.support.rig import FLEET_PATH, PODS_PATH, WEIGHTS_PATH, Rig, VirtualWallClock

from fleet_worker.logs import json_formatter
from fleet_worker.protocol import Phase
from rlfleet.ports import Json

REPLICAS = 4
WORKED_SECONDS = (2.4, 3.1, 1.8, 2.2)
"""How long stages and loads of the workers take, by ordinal."""


@dataclass(frozen=True)
class Situation:
    """A moment: the objects, those that are there, and what the operator has logged.

    Fields:
        log: lines with the kubelet's timestamp. Of those at level DEBUG only calls to workers.
    """

    now: datetime
    fleet: Json | None
    weights: Json | None
    log: tuple[str, ...]

    def text(self) -> str:
        """As it is recorded."""
        objects = {"now": self.now.isoformat(), "fleet": self.fleet, "weights": self.weights}
        return yaml.safe_dump(objects | {"log": list(self.log)}, width=1000)

    @classmethod
    def read(cls, text: str) -> Situation:
        """The situation that `text` has written."""
        found = yaml.safe_load(text)
        now = datetime.fromisoformat(found["now"])
        return cls(now, found["fleet"], found["weights"], tuple(found["log"]))


Story = Callable[[Rig], Awaitable[None]]


async def applied(rig: Rig) -> None:
    """Version 2 is applied, for more than a minute."""
    _slow(rig)
    rig.publish("2")
    await rig.applied("2")
    await asyncio.sleep(75)


async def staging(rig: Rig) -> None:
    """Workers stage version 3."""
    await applied(rig)
    rig.publish("3")
    await rig.until(lambda: rig.phase == "Staging")
    await asyncio.sleep(2.0)


async def paused(rig: Rig) -> None:
    """All workers hold their requests, and load version 3."""
    await applied(rig)
    rig.publish("3")
    await rig.until(lambda: rig.phase == "Loading" and rig.weights["workers"]["paused"] == REPLICAS)
    await asyncio.sleep(1.5)


async def stalled(rig: Rig) -> None:
    """Two workers have refused the files of version 3."""
    await applied(rig)
    for ordinal in (1, 2):
        rig.worker(ordinal).bad_sources.add("/weights/step_3")
    rig.publish("3")
    await rig.until(lambda: len(rig.weights["laggards"]) == 2)
    await asyncio.sleep(1.0)


async def suspended(rig: Rig) -> None:
    """Version 3 waits, since rollouts are suspended."""
    await applied(rig)
    rig.change(WEIGHTS_PATH, version="3", suspend=True)
    await rig.until(lambda: rig.phase == "Suspended")
    await asyncio.sleep(30)


async def broken_fleet(rig: Rig) -> None:
    """Version 2 is applied, and then the fleet's spec cannot be used."""
    await applied(rig)
    rig.change(FLEET_PATH, podOverlay={"spec": {"tolerations": None}})
    await rig.until(lambda: rig.condition("Stalled"))
    await asyncio.sleep(1.0)


async def unschedulable(rig: Rig) -> None:
    """Version 2 is applied, and then two pods are gone and get no node."""
    await applied(rig)
    rig.without_node |= {1, 2}
    for ordinal in (1, 2):
        rig.cluster.drop(f"{PODS_PATH}/policy-{ordinal}")
    await asyncio.sleep(60)


async def scaled_to_zero(rig: Rig) -> None:
    """Version 2 is applied, and then a user asks for no workers."""
    await applied(rig)
    rig.change(FLEET_PATH, replicas=0)
    await rig.until(lambda: not rig.fleet["workers"]["total"])
    await asyncio.sleep(1.0)


async def router_down(rig: Rig) -> None:
    """Version 2 is applied, and the new router of the fleet does not become ready."""
    await applied(rig)
    rig.change(FLEET_PATH, router={"image": "rlfleet/router:1", "replicas": 2})
    await rig.until(lambda: rig.condition("RouterAvailable"))
    await asyncio.sleep(1.0)


async def orphaned(rig: Rig) -> None:
    """The WeightVersion names a fleet that does not exist."""
    rig.operator.store.remove_fleet(rig.cluster.objects.pop(FLEET_PATH))
    await rig.until(lambda: rig.condition("Stalled", of=WEIGHTS_PATH))


async def external(rig: Rig) -> None:
    """A trainer has loaded version 2 into all workers of its fleet."""
    for worker in rig.workers.workers.values():
        worker.label = worker.weights = "2"
        worker.source = "/weights/step_2"
        worker.serve()
    await rig.until(lambda: _is_true(rig.condition("Ready")))
    await asyncio.sleep(75)


async def differing(rig: Rig) -> None:
    """The trainer of an External fleet has updated half of the workers."""
    await external(rig)
    for ordinal in (0, 1):
        rig.worker(ordinal).label = rig.worker(ordinal).weights = "3"
        rig.worker(ordinal).source = "/weights/step_3"
    await rig.until(lambda: rig.condition("Stalled"), seconds=600)


STORIES: dict[str, Story] = {
    story.__name__.replace("_", "-"): story
    for story in (
        applied,
        staging,
        paused,
        stalled,
        suspended,
        broken_fleet,
        unschedulable,
        scaled_to_zero,
        router_down,
        orphaned,
        external,
        differing,
    )
}
_EXTERNAL = {"external", "differing"}


def play(name: str) -> Situation:
    """The situation as the simulator gives it now."""
    found: list[Situation] = []

    async def story() -> None:
        random.seed(1)
        async with _rig(external=name in _EXTERNAL) as rig:
            with _noted_log() as log:
                await STORIES[name](rig)
                found.append(_seen(rig, log))

    virtual_time.run(story())
    return found[0]


@asynccontextmanager
async def _rig(*, external: bool) -> AsyncIterator[Rig]:
    if not external:
        async with Rig(replicas=REPLICAS) as rig:
            await rig.applied("1")
            yield rig
        return
    made = Rig(replicas=REPLICAS, weights={"roots": ["/weights"], "management": "External"})
    made.has_weights = False
    async with made as rig:
        workers = rig.workers.workers
        await rig.until(lambda: len(workers) == REPLICAS and _all_join(rig))
        yield rig


def _all_join(rig: Rig) -> bool:
    return all(worker.phase is Phase.JOINING for worker in rig.workers.workers.values())


def _is_true(condition: Json | None) -> bool:
    return condition is not None and condition["status"] == "True"


def _slow(rig: Rig) -> None:
    for ordinal, seconds in enumerate(WORKED_SECONDS):
        rig.worker(ordinal).slow_seconds = seconds


def _seen(rig: Rig, log: list[str]) -> Situation:
    def found(path: str) -> Json | None:
        return copy.deepcopy(rig._with_status(path)) if path in rig.cluster.objects else None

    return Situation(VirtualWallClock.now(UTC), found(FLEET_PATH), found(WEIGHTS_PATH), tuple(log))


class _Kubelet(logging.Handler):
    """Keeps each line with the time at which the kubelet would have got it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(json_formatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.DEBUG and getattr(record, "event", "") != "call":
            return
        moment = VirtualWallClock.now(UTC)
        record.created = moment.timestamp()
        self.lines.append(f"{moment.isoformat().removesuffix('+00:00')}Z {self.format(record)}")


@contextmanager
def _noted_log() -> Iterator[list[str]]:
    logger, kubelet = logging.getLogger("fleet_operator.runtime"), _Kubelet()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(kubelet)
    try:
        yield kubelet.lines
    finally:
        logger.removeHandler(kubelet)
        logger.setLevel(before)
