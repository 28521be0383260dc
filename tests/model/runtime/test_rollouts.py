"""The runtime on virtual time: rollouts with workers and API servers that fail."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.support.rig import Rig
from tests.support.virtual_time import now

from fleet_operator.errors import Conflict, FleetError, Retryable, Unknown
from fleet_worker.protocol import Reason


class TestRollouts:
    @pytest.mark.parametrize("calls", range(12))
    async def test_the_next_operator_ends_the_rollout_of_one_that_dies_after_any_call(self, calls):
        async with Rig() as rig:
            await rig.applied("1")
            rig.workers.asked.clear()
            rig.workers.latency_seconds = 0.05
            rig.publish("2")
            await rig.until(lambda: len(rig.workers.asked) > calls)
            await rig.restart_operator()
            await rig.applied("2")
            assert rig.serving == ["2", "2", "2"]
            assert all(w.lost_requests == 0 for w in rig.workers.workers.values())

    async def test_a_worker_whose_call_hangs_does_not_hold_up_the_others(self):
        async with Rig(replicas=20) as rig:
            await rig.applied("1")
            rig.workers.hanging.add(7)
            rig.publish("2")
            others = [n for n in range(20) if n != 7]
            took = await rig.until(lambda: all(rig.worker(n).staged == "2" for n in others))
            assert took < 0.2
            assert rig.serving == ["1"] * 20
            rig.workers.hanging.clear()
            rig.publish("3")
            assert await rig.applied("3") < 1

    async def test_no_late_admission_opens_a_worker_while_others_serve_a_newer_version(self):
        async with Rig(replicas=2) as rig:
            await rig.applied("1")
            late = rig.worker(1)
            late.kill(now())
            rig.worker(0).slow_seconds = 6.5  # has staged when the other one has joined
            rig.publish("2")
            await rig.until(lambda: ("stage 2", 0) in rig.workers.asked)
            rig.workers.asked.clear()
            rig.workers.admissions_take_seconds = 5.0
            await rig.until(lambda: ("admit 1", 1) in rig.workers.asked)
            late.slow_seconds, rig.worker(0).slow_seconds = 30.0, 0.1
            pairs = set()
            while len(rig.workers.late) < 2:  # the one at version 1, and the one at version 2
                generating = [w for w in rig.workers.workers.values() if w.generates]
                pairs.add(frozenset(str(w.label) for w in generating))
                await asyncio.sleep(0.05)
            assert all(len(labels) < 2 for labels in pairs), pairs
            assert ("fence", 1) in rig.workers.asked
            await rig.applied("2")

    async def test_a_fleet_that_hangs_does_not_hold_up_another(self):
        """Covered by the queue: what is shown here is that a reconcile does not wait for calls."""

        async with Rig(replicas=3) as rig:
            await rig.applied("1")
            rig.workers.hanging |= {0, 1, 2}
            rig.publish("2")
            await rig.until(lambda: len(rig.workers.asked) >= 6)
            started = now()
            await rig.operator.reconcile(("rl", "policy"))
            assert now() - started < 0.5

    @pytest.mark.parametrize(
        "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 12))]
    )
    async def test_a_rollout_ends_despite_api_errors(self, seed):
        chance = random.Random(seed)  # noqa: S311 - a seed to repeat
        errors = [
            Retryable("429", after_seconds=1),
            Retryable("503"),
            Unknown("no answer"),
            Conflict("409"),
        ]

        def refuses(verb: str, path: str) -> FleetError | None:
            if "/leases" in path or chance.random() > 0.3:
                return None
            return chance.choice(errors)

        async with Rig() as rig:
            await rig.applied("1")
            rig.kube.refuses = refuses
            for version in "234":
                rig.publish(version)
                await asyncio.sleep(chance.random() * 3)
            await rig.until(lambda: rig.serving == ["4", "4", "4"])
            await rig.applied("4")


class TestPolling:
    async def test_only_the_worker_that_is_not_ready_is_polled_often(self):
        async with Rig(replicas=4) as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            rig.workers.silent.add(0)
            rig.worker(0).kill(now())
            await asyncio.sleep(30)
            rig.workers.questions.clear()
            await asyncio.sleep(60)
            asked = Counter(rig.workers.questions)
            assert asked[0] >= 50
            assert all(asked[n] <= 3 for n in (1, 2, 3)), asked


class TestRefusals:
    """A call that a worker refuses is sent again, but not as fast as the worker can refuse."""

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            pytest.param("stage", Reason.BAD_REQUEST, id="a stage that it cannot read"),
            pytest.param("pause", Reason.HELD_BY_ANOTHER, id="a pause while another drives it"),
            pytest.param("load", Reason.WRONG_PHASE, id="a load in the wrong phase"),
            pytest.param("resume", Reason.VERSION_MISMATCH, id="a resume on another version"),
        ],
    )
    async def test_a_refused_call_is_not_repeated_without_a_pause(self, kind, reason):
        async with Rig() as rig:
            await rig.applied("1")
            rig.workers.refusals[kind] = reason
            rig.publish("2")
            await rig.until(
                lambda: (f"{kind} 2".replace("pause 2", "pause"), 0) in rig.workers.asked
            )
            rig.workers.asked.clear()
            await asyncio.sleep(10)
            repeated = [key for key, ordinal in rig.workers.asked if ordinal == 0]
            assert 1 <= len([k for k in repeated if k.startswith(kind)]) <= 15
            rig.workers.refusals.clear()
            assert await rig.applied("2") < 5

    async def test_a_joining_worker_that_refuses_its_admission_is_not_asked_without_a_pause(self):
        async with Rig() as rig:
            rig.workers.refusals["admit"] = Reason.WRONG_PHASE
            await rig.until(lambda: ("admit 1", 0) in rig.workers.asked)
            rig.workers.asked.clear()
            await asyncio.sleep(10)
            assert 1 <= len([n for _, n in rig.workers.asked if n == 0]) <= 15
