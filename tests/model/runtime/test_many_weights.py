"""The runtime on virtual time: many WeightVersions of one fleet."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.model.runtime.support import only
from tests.support.counted_calls import operator_calls
from tests.support.rig import WEIGHTS_PATH, Rig, VirtualWallClock
from tests.support.virtual_time import now

from fleet_operator.core.steering import LOOKED_AT
from fleet_operator.errors import Terminal
from fleet_operator.ports import Json
from fleet_operator.runtime.fleet_weights import AT_ONCE, TURN_SECONDS
from fleet_operator.runtime.operator_process import SWEEP_SECONDS

FEW = LOOKED_AT + 32


class Many:
    """WeightVersions next to the one of a rig. Watches bring each write of a status back."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._apply = rig.kube.apply
        self.paths: list[str] = []
        rig.kube.apply = self._apply_and_watch

    def make(self, number: int, *, fleet: str = "policy", **spec: Any) -> None:
        """Make this many at once."""
        first = self._rig.cluster.objects[WEIGHTS_PATH]
        for _ in range(number):
            name = f"more-{len(self.paths)}"
            made_at = VirtualWallClock.now() + timedelta(days=31, seconds=len(self.paths))
            metadata = {
                "name": name,
                "namespace": "rl",
                "uid": name,
                "generation": 1,
                "creationTimestamp": made_at.isoformat() + "+00:00",
            }
            wanted = first["spec"] | {"version": "9", "fleetRef": {"name": fleet}} | spec
            path = WEIGHTS_PATH.replace("versions/policy", f"versions/{name}")
            self.paths.append(path)
            self._rig.cluster.put(path, first | {"metadata": metadata, "spec": wanted})
            self._tell(path)

    def delete(self, path: str) -> None:
        """Delete one."""
        self.paths.remove(path)
        body = self._rig.cluster.objects[path]
        self._rig.cluster.drop(path)
        self._rig.cluster.objects.pop(f"{path}/status", None)
        self._rig.operator.store.remove_weights(body)

    def reason(self, path: str) -> str:
        """Why one is Stalled; empty if it is not."""
        found = self._rig.condition("Stalled", of=path)
        return found["reason"] if found else ""

    @property
    def reasons(self) -> list[str]:
        """Of all, oldest first."""
        return [self.reason(path) for path in self.paths]

    @property
    def written(self) -> list[str]:
        """The paths of all of their statuses that were written, in this order."""
        writes = (
            path.removesuffix("/status") for verb, path in self._rig.writes if verb == "APPLY"
        )
        return [path for path in writes if "/more-" in path]

    async def _apply_and_watch(self, path: str, body: Json) -> Json:
        made = await self._apply(path, body)
        if path.endswith("/status") and "/weightversions/" in path:
            self._tell(path.removesuffix("/status"))
        return made

    def _tell(self, path: str) -> None:
        self._rig.operator.store.put_weights(self._rig._with_status(path))


async def cost_of(number: int, *, fleet: str, statuses_each: int) -> int:
    """Calls of the operator's functions until each of `number` WeightVersions has its status."""
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        with operator_calls() as calls:
            for _ in range(number // 10):
                many.make(10, fleet=fleet)
                await asyncio.sleep(0.02)
            await rig.until(lambda: all(many.reasons))
        assert len(many.written) <= number * statuses_each
        return calls[0]


@pytest.mark.parametrize(
    ("fleet", "statuses_each"),
    [
        ("policy", 1),
        ("missing", 2),  # the fleet may come later, and then it has not come
    ],
)
async def test_twice_as_many_weightversions_cost_the_operator_twice_as_much(
    fleet: str, statuses_each: int
) -> None:
    """Each of them gets its status once, also while others come."""

    few = await cost_of(FEW, fleet=fleet, statuses_each=statuses_each)
    many = await cost_of(2 * FEW, fleet=fleet, statuses_each=statuses_each)
    assert many < few * 2.2


async def test_newer_weightversions_than_a_fleet_looks_at_are_stalled_with_the_remedy() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        many.make(LOOKED_AT - 1)
        await rig.until(lambda: all(many.reasons))
        assert set(many.reasons) == {"SecondBaseVersion"}
        assert rig.condition("Stalled") is None
        many.make(3)
        await rig.until(lambda: rig.condition("Stalled") is not None and all(many.reasons))
        assert many.reasons[-4:] == ["SecondBaseVersion", *["TooMany"] * 3]
        assert rig.condition("Ready", of=many.paths[-1])["reason"] == "TooMany"
        assert "delete those" in rig.condition("Ready", of=many.paths[-1])["message"]
        assert rig.condition("Stalled")["reason"] == "TooMany"
        assert f"{LOOKED_AT + 3} WeightVersions" in rig.condition("Stalled")["message"]
        await rig.until(lambda: rig.condition("Ready")["status"] == "True", seconds=5)
        rig.publish("2")
        await rig.applied("2", seconds=5)
        for path in many.paths[:3]:
            many.delete(path)
        await rig.until(lambda: set(many.reasons) == {"SecondBaseVersion"}, seconds=5)
        await rig.until(lambda: rig.condition("Stalled") is None, seconds=5)


async def test_those_beyond_are_stalled_too_while_their_fleet_was_never_readable() -> None:
    async with Rig(model={"name": 7}) as rig:
        many = Many(rig)
        many.make(LOOKED_AT - 1 + 2 * AT_ONCE)
        await rig.until(lambda: rig.condition("Stalled") is not None)
        assert rig.condition("Stalled")["reason"] == "InvalidSpec"
        await rig.until(lambda: all(many.reasons), seconds=20)
        assert set(many.reasons[: LOOKED_AT - 1]) == {"InvalidSpec"}
        assert set(many.reasons[LOOKED_AT - 1 :]) == {"TooMany"}
        await asyncio.sleep(60)
        assert len(many.written) == len(many.paths), "each once"


async def test_the_statuses_of_those_beyond_are_paced() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        many.make(LOOKED_AT - 1)
        await rig.until(lambda: all(many.reasons))
        many.make(5 * AT_ONCE)
        began_at, before = now(), len(many.written)
        while not all(many.reasons):
            await asyncio.sleep(0.1)
            turns = 1 + (now() - began_at) / TURN_SECONDS
            assert len(many.written) - before <= AT_ONCE * turns
        assert now() - began_at < 6 * TURN_SECONDS


async def test_a_refused_status_of_one_beyond_does_not_hold_up_the_others() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        many.make(LOOKED_AT - 1 + 3 * AT_ONCE)
        refused = many.paths[LOOKED_AT : LOOKED_AT + AT_ONCE]
        forbidden = Terminal("403")
        rig.kube.refuses = lambda verb, path: (
            forbidden if path.removesuffix("/status") in refused else None
        )
        await rig.until(lambda: many.reasons.count("") == AT_ONCE, seconds=20)
        assert [p for p in many.paths if not many.reason(p)] == refused
        rig.kube.refuses = only("", "nothing", forbidden)
        await rig.until(lambda: all(many.reasons), seconds=20)


async def test_a_new_leader_finds_each_status_and_writes_none() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        many.make(LOOKED_AT + 10)
        await rig.until(lambda: all(many.reasons))
        await rig.restart_operator()
        after = Many(rig)
        for path in many.paths:
            after._tell(path)
        await asyncio.sleep(60)
        assert after.written == []
        shown = rig.operator.metrics.render().decode()
        assert 'reason="SecondBaseVersion"' in shown
        await rig.until(lambda: rig.condition("Stalled") is not None)


async def test_what_is_changed_back_by_another_writer_is_written_again() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        many.make(LOOKED_AT)
        await rig.until(lambda: all(many.reasons))
        for path in (many.paths[0], many.paths[-1]):
            body = rig.cluster.objects[path]
            rig.cluster.put(f"{path}/status", {"metadata": body["metadata"], "status": {}})
            rig.cluster.put(path, body | {"status": {}})
            many._tell(path)
        assert not many.reason(many.paths[0])
        await rig.until(lambda: all(many.reasons), seconds=10)


async def test_names_of_missing_fleets_cost_no_memory_once_all_is_reported() -> None:
    """Users can mention any number of names."""

    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        for number in range(20):
            many.make(1, fleet=f"missing-{number}")
        await rig.until(lambda: all(many.reasons))
        await rig.until(lambda: [s.key[1] for s in rig.operator.sessions] == ["policy"])
        shown = rig.operator.metrics.render().decode()
        stalled = [each for each in shown.splitlines() if 'type="Stalled"' in each]
        assert sum('reason="FleetNotFound"' in each for each in stalled) == 20

        written = len(many.written)
        rig.change(many.paths[0], version="10")
        many._tell(many.paths[0])
        await rig.until(lambda: len(many.written) > written, seconds=5)
        assert many.reason(many.paths[0]) == "FleetNotFound", "it stays so"
        await rig.until(lambda: len(rig.operator.sessions) == 1, seconds=5)


async def test_an_event_about_a_missing_fleet_that_is_refused_is_posted_later() -> None:
    async with Rig() as rig:
        await rig.applied("1")
        many = Many(rig)
        rig.kube.refuses = only("POST", "/events", Terminal("403"))
        many.make(1, fleet="missing")
        await rig.until(lambda: all(many.reasons))
        await asyncio.sleep(5)
        assert len(rig.operator.sessions) == 2
        rig.kube.refuses = only("", "nothing", Terminal("403"))
        await rig.until(lambda: len(rig.operator.sessions) == 1, seconds=2 * SWEEP_SECONDS)
