"""The runtime on virtual time: workers that do not follow calls, whatever they answer.

A call is repeated ever later and reported, for every kind of call. Before, the operator sent hundreds of
calls a second to such workers, and reported nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from tests.model.fake_state import FakeAdapter
from tests.support.rig import FLEET_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.runtime.reconcile import Reconciler
from fleet_worker.logs import RepeatedLines

ADAPTER_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/weightversions/lora"
REPORTED_SECONDS = 90.0
WATCHED_SECONDS = 180.0
CALLS_PER_MINUTE = 16
"""Of one kind to one worker: some soon after each other, then one every five seconds."""
RECONCILES_PER_SECOND = 5
BYTES_PER_SECOND = 300

Begin = Callable[[Rig], None]


def publish(rig: Rig) -> None:
    rig.publish("2")


def restart(rig: Rig) -> None:
    rig.worker(0).kill(now())


def publish_adapter(rig: Rig) -> None:
    rig.add_adapter(ADAPTER_PATH, "lora", "1")


def leave_an_adapter(rig: Rig) -> None:
    rig.worker(0).adapters["stray"] = FakeAdapter("1", None, "/weights/stray/step_1", "1")


FLEETS: dict[str, dict[str, Any]] = {
    "swap": {"rollout": {"strategy": "InFlight"}},
    "canary": {"rollout": {"strategy": "Canary"}},
    "adapters": {"adapters": {"max": 2}},
}
CASES: list[tuple[str, str, Begin]] = [
    ("", "stage", publish),
    ("", "pause", publish),
    ("", "load", publish),
    ("", "resume", publish),
    ("", "admit", restart),
    ("swap", "apply", publish),
    ("swap", "stage", publish),
    ("canary", "probe", publish),
    ("adapters", "adapter", publish_adapter),
    ("adapters", "stage-adapter", publish_adapter),
    ("adapters", "remove-adapter", leave_an_adapter),
    ("", "all", publish),
    ("", "all", restart),
]


class Watched:
    """A fleet of two workers, and what an operator does while they do not follow calls."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.reconciles = 0
        self.calls: list[tuple[float, str, int]] = []

    async def watch(self, seconds: float) -> None:
        """Count for some time."""
        reconcile = Reconciler._reconcile
        seen = self.rig.workers.asked
        seen.clear()

        async def counted(its: Reconciler, *what: Any) -> float | None:
            self.reconciles += 1
            return await reconcile(its, *what)

        with mock.patch.object(Reconciler, "_reconcile", counted):
            until = now() + seconds
            while now() < until:
                self.calls += [(now(), *call) for call in seen]
                seen.clear()
                await asyncio.sleep(0.1)

    def busiest(self) -> tuple[int, tuple[str, int]]:
        """The most calls of one kind to one worker within a minute."""
        found = []
        for begin, *_ in self.calls:
            within = Counter(
                call
                for at, *call_of in self.calls
                for call in [tuple(call_of)]
                if begin <= at < begin + 60
            )
            found += [(n, call) for call, n in within.items()]
        return max(found, default=(0, ("", 0)))

    def stalled(self) -> str:
        """The messages of all conditions `Stalled`."""
        found = (
            self.rig.condition("Stalled", of=p) for p in (FLEET_PATH, WEIGHTS_PATH, ADAPTER_PATH)
        )
        return "; ".join(f"{c['reason']}: {c['message']}" for c in found if c)


def cases() -> list[Any]:
    """Every kind that is ignored, and some that are refused or get no answer; the others are long."""
    return [
        pytest.param(
            *case, how, marks=() if how == "ignores" or case[1] == "all" else pytest.mark.long
        )
        for case in CASES
        for how in ("ignores", "refuses", "resets")
    ]


@pytest.mark.parametrize(("fleet", "kind", "begin", "how"), cases())
async def test_a_call_that_is_not_followed_is_repeated_ever_later_and_reported(
    fleet: str,
    kind: str,
    begin: Begin,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig(replicas=2, **FLEETS.get(fleet, {})) as rig:
        await rig.applied("1")
        caplog.clear()
        monkeypatch.setattr(caplog.handler, "filters", [RepeatedLines(now)])
        begin(rig)
        for worker in rig.workers.workers.values():
            setattr(worker, how, frozenset({kind}))
        watched = Watched(rig)
        await watched.watch(REPORTED_SECONDS)
        heals = kind == "resume"  # the lease of its pause ends, and it joins again
        told = watched.stalled()
        assert heals or ("policy-" in told and f"answers {'' if kind == 'all' else kind}" in told)
        await watched.watch(WATCHED_SECONDS - REPORTED_SECONDS)
        most, call = watched.busiest()
        assert 0 < most <= CALLS_PER_MINUTE, call
        assert watched.reconciles <= RECONCILES_PER_SECOND * WATCHED_SECONDS
        written = sum(len(r.getMessage()) for r in caplog.records if r.levelno >= logging.INFO)
        assert written <= BYTES_PER_SECOND * WATCHED_SECONDS


async def test_a_worker_that_follows_calls_again_takes_part_at_once() -> None:
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        rig.worker(0).kill(now())
        rig.worker(0).ignores = frozenset({"admit"})
        await asyncio.sleep(REPORTED_SECONDS)
        assert rig.condition("Stalled") is not None
        rig.worker(0).ignores = frozenset()
        took = await rig.until(lambda: rig.serving == ["1", "1"])
        assert took < 8
        await rig.until(lambda: rig.condition("Stalled") is None, seconds=5)


async def test_a_worker_that_ignores_a_fence_is_taken_out_of_the_service_and_replaced() -> None:
    async with Rig(replicas=3) as rig:
        await rig.applied("1")
        odd = rig.worker(0)
        odd.ignores = frozenset({"fence"})
        odd.label, odd.weights, odd.source = "7", "7", "/weights/step_7"
        took = await rig.until(lambda: odd not in rig.workers.workers.values())
        assert took < 40
        await rig.until(lambda: len(rig.serving) == 3)
        assert rig.serving == ["1", "1", "1"]


async def test_a_worker_that_opens_itself_after_each_fence_is_reported() -> None:
    """Each call has its effect for a moment, so it is not one that is ignored."""

    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        rig.worker(0).kill(now())
        watched = Watched(rig)
        watching = asyncio.create_task(watched.watch(REPORTED_SECONDS))
        while not watching.done():
            if rig.worker(0).admitted:
                rig.worker(0).close("by itself")
            await asyncio.sleep(0.05)
        most, _ = watched.busiest()
        assert 3 <= most <= CALLS_PER_MINUTE
        assert "policy-0" in watched.stalled()
