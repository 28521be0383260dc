"""Many WeightVersions of one tenant, on a real API server, and the rollouts of another tenant meanwhile."""

from __future__ import annotations

import pytest
from tests.cluster.support.costs import Costs, Rollouts
from tests.cluster.support.flood import flooded
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

NUMBER = 2000


@pytest.mark.attack
@pytest.mark.long
@pytest.mark.timeout(500)
async def test_many_weightversions_of_a_tenant_do_not_delay_the_rollouts_of_another(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3)
    await workspace.applied("1")
    costs, rollout = Costs(attack="2,000 WeightVersions of one fleet"), Rollouts(workspace)
    await costs.measure_alone(rollout)
    other = f"{workspace.namespace}-many"
    await workspace.make_namespace(other)
    await workspace.make_fleet(replicas=0, namespace=other)
    path = f"{GROUP}/namespaces/{other}/weightversions"
    spec = {"fleetRef": {"name": FLEET}, "version": "1", "source": {"path": "/weights/step_1"}}
    body = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "WeightVersion", "spec": spec}

    async def reasons() -> list[str]:
        found = await workspace.admin.get(path) or {}
        conditions = [o.get("status", {}).get("conditions", ()) for o in found["items"]]
        return [c["reason"] for each in conditions for c in each if c["type"] == "Stalled"]

    async def each_has_its_status() -> bool:
        return len(await reasons()) >= NUMBER

    async with flooded(workspace, [path], body, number=NUMBER) as flood:
        while flood.returncode is None:
            await costs.measure(rollout, 1)
        await costs.measure(rollout)
    await workspace.until(each_has_its_status, "each has its status", seconds=240)
    await costs.measure(rollout)

    assert {*await reasons()} == {"SecondBaseVersion", "TooMany"}
    costs.note(operator, workspace)
    await operator.stop()
    await workspace.make_namespace(other := f"{workspace.namespace}-again")
    path = f"{GROUP}/namespaces/{other}/weightversions"
    await costs.measure_server(workspace, [path], body, number=NUMBER)
    costs.check()
