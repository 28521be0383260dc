"""Fleets and answers of other tenants delay no pause and no rollout, on a real API server."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

import pytest
from aiohttp import web
from tests.cluster.support.admin import Json
from tests.cluster.support.costs import Costs, Rollouts
from tests.cluster.support.fake_admin_port import FakeAdminPort
from tests.cluster.support.fake_kubelet import hold, let_go, let_stages_go
from tests.cluster.support.flood import flooded
from tests.cluster.support.workspace import GROUP, Workspace

from fleet_operator.counts import counted
from fleet_worker import protocol
from fleet_worker.protocol import Phase

pytestmark = pytest.mark.attack


async def body_of_small_fleets(workspace: Workspace) -> Json:
    """A fleet without workers."""
    spec = (await workspace.fleet())["spec"] | {"replicas": 0}
    return {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "spec": spec}


@pytest.mark.long
@pytest.mark.parametrize("namespaces", [1, 30])
async def test_a_rollout_does_not_wait_for_new_fleets_of_other_tenants(
    workspace: Workspace, namespaces: int
) -> None:
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    costs = Costs(attack=f"1,500 small fleets in {counted(namespaces, 'namespace')}")
    rollout = Rollouts(workspace)
    await costs.measure_alone(rollout)
    others = [f"{workspace.namespace}-{n}" for n in range(namespaces)]
    for other in others:
        await workspace.make_namespace(other)
    paths = [f"{GROUP}/namespaces/{other}/inferencefleets" for other in others]
    body = await body_of_small_fleets(workspace)
    async with flooded(workspace, paths, body, number=1500) as flood:
        with costs.counting(workspace, operator=operator.pid):
            while flood.returncode is None:
                await costs.measure(rollout, 1)
            await costs.measure(rollout)

    costs.note(operator, workspace)
    await operator.stop()
    again = f"{workspace.namespace}-again"
    await workspace.make_namespace(again)
    paths = [f"{GROUP}/namespaces/{again}/inferencefleets"]
    await costs.measure_server(workspace, paths, body, number=1500)
    costs.check()


@pytest.mark.long
async def test_no_lease_lapses_while_another_tenant_creates_fleets(workspace: Workspace) -> None:
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    costs = Costs(attack="1,500 small fleets during a load of 75 s")
    other = f"{workspace.namespace}-flood"
    await workspace.make_namespace(other)
    workers = workspace.kubelet.workers
    hold(workers)
    await workspace.publish("2")

    async def loads() -> bool:
        let_stages_go(workers)
        return all(w.phase is Phase.LOADING for w in workers)

    await workspace.until(loads, "all load")
    began, lowest = time.monotonic(), 30.0
    path = f"{GROUP}/namespaces/{other}/inferencefleets"
    body = await body_of_small_fleets(workspace)
    async with flooded(workspace, [path], body, number=1500):
        while time.monotonic() - began < 75:
            await asyncio.sleep(0.5)
            now = asyncio.get_running_loop().time()
            left = [w.lease_until - now for w in workers if w.lease_until is not None]
            lowest = min([lowest, *left])
    let_go(workers, after_seconds=0.1)
    await workspace.applied("2", seconds=60)

    costs.note(operator, workspace)
    costs.check()
    assert lowest > 10


@pytest.mark.long
@pytest.mark.parametrize("adapters", [0, 64])
async def test_answers_that_are_slow_to_parse_do_not_delay_another_tenant(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, adapters: int
) -> None:
    hostile: set[str] = set()
    honest = FakeAdminPort._handle
    padding = ",".join(["[" * 40 + "]" * 40] * (90 if not adapters else 180))
    padding += f',"{"x" * (35_000 if not adapters else 280_000)}"'

    answers = 0

    async def padded(port: FakeAdminPort, request: web.Request) -> web.Response:
        reply = await honest(port, request)
        nonlocal answers
        if port.worker.uid not in hostile or reply.status != HTTPStatus.OK:
            return reply
        answers += 1
        port.worker.admitted = False  # so that its pod is never ready, and is read each second
        body = bytes(reply.body)[:-1] + f',"x":[{padding}]}}'.encode()
        token = port._token
        call = request.headers["authorization"].rpartition(" ")[2]
        signed = protocol.answer_signature(token, call=call, status=reply.status, body=body)
        headers = {protocol.HEADER_SIGNATURE: signed, "content-type": "application/json"}
        return web.Response(status=reply.status, body=body, headers=headers)

    monkeypatch.setattr(FakeAdminPort, "_handle", padded)
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    most = "300 KB" if adapters else "48 KB"
    costs, rollout = Costs(attack=f"64 workers whose answers have {most}"), Rollouts(workspace)
    await costs.measure_alone(rollout)
    other = f"{workspace.namespace}-slow"
    await workspace.make_namespace(other)
    spec = (await workspace.fleet())["spec"] | {"replicas": 64, "adapters": {"max": adapters}}
    head = {"apiVersion": "rlfleet.dev/v1alpha1", "metadata": {"name": "slow"}}
    root = f"{GROUP}/namespaces/{other}"
    await workspace.admin.create(
        f"{root}/inferencefleets", head | {"kind": "InferenceFleet", "spec": spec}
    )

    async def are_there() -> bool:
        hostile.update(
            uid
            for uid, pod in workspace.kubelet._pods.items()
            if pod["metadata"]["namespace"] == other
        )
        return len(hostile) == 64

    await workspace.until(are_there, "all hostile workers are there", seconds=60)

    async def are_read() -> bool:
        return answers > 3 * len(hostile)

    await workspace.until(are_read, "all are read several times", seconds=60)

    await costs.measure(rollout)
    costs.note(operator, workspace)
    costs.check()
