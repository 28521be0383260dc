"""The runtime on virtual time: writes to the API server, and when they are repeated."""

from __future__ import annotations

import asyncio

import pytest
from tests.model.runtime.support import only
from tests.support.rig import FLEET_PATH, Rig

from fleet_operator.core.decision import deciding
from fleet_operator.errors import Retryable
from fleet_operator.runtime import reconcile as reconcile_module


class TestWrites:
    @pytest.mark.parametrize("replicas", [1, 4, 60])
    async def test_a_rollout_costs_seven_writes_whatever_the_number_of_workers(self, replicas):
        async with Rig(replicas=replicas) as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            before = len(rig.writes)
            rig.publish("2")
            await rig.applied("2")
            await asyncio.sleep(5)
            assert len(rig.writes) - before <= 7, rig.writes[before:]

    async def test_a_rollout_waits_for_one_write_only(self):
        """Stage, pause, load and resume follow each other while statuses are on their way."""

        async with Rig() as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            rig.kube.delay_seconds = 0.5
            rig.publish("2")
            await rig.until(lambda: rig.worker(0).staged == "2", seconds=0.1)
            took = await rig.until(lambda: rig.serving == ["2", "2", "2"])
            assert took < 1.5 * rig.kube.delay_seconds

    async def test_a_status_that_changed_while_it_was_written_is_written_again(self):
        async with Rig() as rig:
            await rig.applied("1")
            rig.kube.delay_seconds = 0.5
            rig.publish("2")
            await rig.until(lambda: rig.serving == ["2", "2", "2"])
            took = await rig.until(lambda: rig.weights.get("appliedVersion") == "2")
            assert took <= 2 * rig.kube.delay_seconds + 1, "in flight, its own, one held back"

    async def test_a_slow_rollout_writes_its_progress_once_a_second_at_most(self):
        async with Rig(replicas=20) as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            before = len(rig.writes)
            for n in range(20):
                rig.worker(n).slow_seconds = 1 + n / 2
            rig.publish("2")
            took = await rig.applied("2")
            assert len(rig.writes) - before <= 2 * took + 7

    async def test_a_fleet_at_rest_writes_nothing(self):
        async with Rig() as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            before = len(rig.writes)
            await asyncio.sleep(1200)
            written = rig.writes[before:]
            assert written == []

    async def test_an_operator_that_starts_with_a_fleet_at_rest_changes_nothing(self):
        async with Rig() as rig:
            await rig.applied("1")
            await asyncio.sleep(5)
            before = {p: o for p, o in rig.cluster.objects.items() if "/leases" not in p}
            await rig.restart_operator()
            await asyncio.sleep(20)
            assert not [p for _, p in rig.writes if "rlfleet.dev" in p or "/pods" in p]
            after = {p: o for p, o in rig.cluster.objects.items() if "/leases" not in p}
            for path in before.keys() | after.keys():
                old, new = dict(before[path]), dict(after[path])
                assert old.pop("metadata") | new["metadata"] == new.pop("metadata")
                assert old == new

    async def test_writes_are_counted_by_kind(self):
        async with Rig(replicas=2) as rig:
            await rig.applied("1")
            await rig.operator.sessions.events.flush()
            shown = rig.operator.metrics.render().decode()
            found = {
                line.split('"')[1]: float(line.split()[-1])
                for line in shown.splitlines()
                if line.startswith("rlfleet_api_writes_total{")
            }
            assert sum(found.values()) == len(rig.writes)
            assert (found["pod"], found["secret"]) == (2, 1)


class TestErrors:
    async def test_a_defect_in_one_fleet_is_reported_and_stops_no_other_part(
        self, caplog, monkeypatch
    ):
        def plan(observed, **given):
            if observed.generation == 2:
                raise RuntimeError("a defect of ours")
            return deciding(observed, **given)

        async with Rig() as rig:
            await rig.applied("1")
            monkeypatch.setattr(reconcile_module, "deciding", plan)
            rig.change(FLEET_PATH, replicas=4)
            await asyncio.sleep(65)
            assert len(rig.workers.workers) == 3
            assert rig.condition("Stalled")["reason"] == "InternalError"
            rig.change(FLEET_PATH, replicas=4)
            await rig.until(lambda: len(rig.serving) == 4)
        assert caplog.text.count("RuntimeError: a defect of ours") == 1  # not once a retry

    async def test_a_server_that_asks_to_wait_gets_one_request_a_second_at_most(self):
        async with Rig() as rig:
            await rig.applied("1")
            rig.kube.refuses = only("APPLY", "/status", Retryable("429", after_seconds=7))
            rig.publish("2")
            await asyncio.sleep(1)
            before = len(rig.kube.requests)
            await asyncio.sleep(5)
            asked = [r for r in rig.kube.requests[before:] if "/status" in r[1]]
            assert len(asked) <= 2 * 6
