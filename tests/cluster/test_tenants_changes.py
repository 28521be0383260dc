"""Changes that one tenant makes all the time delay no rollout of another one, on a real API server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.cluster.support.admin import Json
from tests.cluster.support.costs import ROUNDS, Costs, Rollouts
from tests.cluster.support.flood import flooded
from tests.cluster.support.workspace import GROUP, Workspace

pytestmark = [pytest.mark.attack, pytest.mark.long]
HEAD = {"apiVersion": "rlfleet.dev/v1alpha1"}
ADAPTERS, SLOTS = 200, 64
FLEETS = 8


async def measured(
    workspace: Workspace,
    costs: Costs,
    rollout: Rollouts,
    paths: Sequence[str],
    changes: Sequence[Json],
) -> None:
    """The costs of these changes, with the operator and without it."""
    operator = workspace.operators[0]
    async with flooded(workspace, paths, None, number=10**6, changes=changes):
        with costs.counting(workspace, operator=operator.pid):
            await costs.measure(rollout, 2 * ROUNDS)
    costs.note(operator, workspace)
    await operator.stop()
    await costs.measure_server(workspace, paths, None, number=10**6, changes=changes)
    costs.check()


async def test_adapters_that_are_published_all_the_time_delay_no_other(
    workspace: Workspace,
) -> None:
    await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    name = f"{ADAPTERS} adapters that are published all the time"
    costs, rollout = Costs(attack=name), Rollouts(workspace)
    await costs.measure_alone(rollout)
    other = f"{workspace.namespace}-adapters"
    await workspace.make_namespace(other)
    spec = (await workspace.fleet())["spec"] | {"replicas": 1, "adapters": {"max": SLOTS}}
    body = HEAD | {"kind": "InferenceFleet", "metadata": {"name": "many"}, "spec": spec}
    await workspace.admin.create(f"{GROUP}/namespaces/{other}/inferencefleets", body)
    root = f"{GROUP}/namespaces/{other}/weightversions"
    for n in range(ADAPTERS):
        spec = {"fleetRef": {"name": "many"}, "adapter": f"a{n}", "version": "1"}
        spec |= {"source": {"path": f"/weights/a{n}_{{version}}"}}
        metadata = {"name": f"a{n}"}
        body = HEAD | {"kind": "WeightVersion", "metadata": metadata, "spec": spec}
        await workspace.admin.create(root, body)
    paths = [f"{root}/a{n}" for n in range(ADAPTERS)]
    changes = [{"spec": {"version": f"v{n}"}} for n in range(2, 1000)]
    await measured(workspace, costs, rollout, paths, changes)


async def test_fleets_that_scale_all_the_time_delay_no_other(workspace: Workspace) -> None:
    await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    name = f"{FLEETS} fleets that scale all the time"
    costs, rollout = Costs(attack=name), Rollouts(workspace)
    await costs.measure_alone(rollout)
    other = f"{workspace.namespace}-scales"
    await workspace.make_namespace(other)
    root = f"{GROUP}/namespaces/{other}/inferencefleets"
    spec = (await workspace.fleet())["spec"] | {"replicas": 0}
    for n in range(FLEETS):
        metadata = {"name": f"flood-{n}"}
        body = HEAD | {"kind": "InferenceFleet", "metadata": metadata, "spec": spec}
        await workspace.admin.create(root, body)
    paths = [f"{root}/flood-{n}" for n in range(FLEETS)]
    changes = [{"spec": {"replicas": n}} for n in (8, 0)]
    await measured(workspace, costs, rollout, paths, changes)
