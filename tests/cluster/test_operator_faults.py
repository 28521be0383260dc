"""The fleet converges despite faults of networks and busy API servers during rollouts."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from tests.cluster.support.fake_kubelet import hold, let_go, let_stages_go
from tests.cluster.support.faults import Fault, Faults
from tests.cluster.support.workspace import FLEET, Workspace

from fleet_worker.protocol import Phase

CONVERGES_SECONDS = 60


@pytest.mark.parametrize("rollouts", [3, pytest.param(6, marks=pytest.mark.long)])
async def test_rollouts_converge_with_failing_requests_and_watches(
    workspace: Workspace, rollouts: int, record_property
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311 - chance, not secrets
    record_property("seed", seed)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    operator = await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    faults = operator.proxy.faults = Faults(seed, share=0.4)
    operator.proxy.cut_watches()

    for version in range(2, 2 + rollouts):
        await workspace.publish(str(version))
        if version == 3:
            operator.send(signal.SIGTERM)  # the next one meets faults from its start on
        await workspace.applied(str(version), seconds=CONVERGES_SECONDS)

    assert len(faults.chosen) >= 3, f"seed {seed}: {faults.chosen}"
    assert sum(faults.chosen.values()) >= 2 * rollouts
    assert operator.starts >= 2
    faults.active = False
    await workspace.change_fleet(replicas=2)
    await workspace.publish("last")
    await workspace.applied("last", replicas=2)
    assert all(w.lease_until is None for w in workspace.kubelet.workers)
    assert await workspace.condition("Stalled") is None


async def test_an_expired_watch_is_listed_again(workspace: Workspace) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    operator.proxy.faults = Faults(1)
    operator.proxy.faults.WATCH = (Fault.GONE,)
    operator.proxy.faults.READ = operator.proxy.faults.WRITE = (Fault.SLOW,)
    operator.proxy.cut_watches()

    async def refused() -> bool:
        return operator.proxy.faults.chosen[Fault.GONE] >= 3

    await workspace.until(refused, "watches are refused with 410")
    await workspace.kubectl("delete", "pod", f"{FLEET}-1", "--wait=false")
    await workspace.publish("2")
    operator.proxy.faults.active = False
    await workspace.applied("2", replicas=2)


class GoneResources(Faults):
    """410 for each watch of the custom resources."""

    def choose(self, method: str, path: str, *, watches: bool) -> Fault | None:
        if not (self.active and watches and "/rlfleet.dev/" in path):
            return None
        self.chosen[Fault.GONE] += 1
        return Fault.GONE


async def test_a_weight_version_that_was_deleted_in_a_gap_of_the_watch_is_forgotten(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    second = await workspace.weights()
    operator.proxy.faults = faults = GoneResources(1)
    operator.proxy.cut_watches()

    async def refused() -> bool:
        return faults.chosen[Fault.GONE] >= 2

    await workspace.until(refused, "both watches are refused with 410")
    await workspace.kubectl("delete", f"wv/{FLEET}")
    body = {k: second[k] for k in ("apiVersion", "kind")} | {"metadata": {"name": "second"}}
    path = workspace.path("weightversions").rpartition("/")[0]
    await workspace.admin.create(path, body | {"spec": second["spec"] | {"version": "2"}})
    faults.active = False

    async def the_second_steers() -> bool:
        return workspace.serving == ["2", "2"]

    await workspace.until(the_second_steers, "both workers serve 2")


async def test_an_api_server_that_restarts_in_a_rollout_does_not_stop_it(
    workspace: Workspace,
) -> None:
    await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    hold(workspace.kubelet.workers)
    await workspace.publish("2")

    async def loads() -> bool:
        let_stages_go(workspace.kubelet.workers)
        return any(w.phase is Phase.LOADING for w in workspace.kubelet.workers)

    await workspace.until(loads, "a worker loads")
    let_go(workspace.kubelet.workers, after_seconds=1)
    await asyncio.to_thread(workspace.cluster.restart, "kube-apiserver")

    await workspace.applied("2")
    assert all(w.lease_until is None for w in workspace.kubelet.workers)
    await workspace.publish("3")
    await workspace.applied("3")
