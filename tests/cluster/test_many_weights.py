"""Many WeightVersions of one tenant, on a real API server, and the rollouts of another tenant meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

AT_ONCE = 20
SOON_SECONDS = 5.0
"""A rollout alone takes a few tenths of a second. While each decision computed all WeightVersions of its
fleet, it took longer than a minute here."""


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_many_weightversions_of_a_tenant_do_not_delay_the_rollouts_of_another(
    workspace: Workspace,
) -> None:
    await workspace.start_operator()
    await workspace.make_fleet(replicas=3)
    await workspace.applied("1")
    other = f"{workspace.namespace}-many"
    await workspace.make_namespace(other)
    await workspace.make_fleet(replicas=0, namespace=other)
    root = f"{GROUP}/namespaces/{other}"
    number = 1000

    async def make(n: int) -> None:
        spec = {
            "fleetRef": {"name": FLEET},
            "version": "1",
            "source": {"path": "/weights/step_1"},
        }
        head = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "WeightVersion"}
        await workspace.admin.create(
            f"{root}/weightversions", head | {"metadata": {"name": f"w{n}"}, "spec": spec}
        )

    async def reasons() -> list[str]:
        found = await workspace.admin.get(f"{root}/weightversions") or {}
        conditions = [o.get("status", {}).get("conditions", ()) for o in found["items"]]
        return [c["reason"] for each in conditions for c in each if c["type"] == "Stalled"]

    for first in range(0, number, AT_ONCE):
        await asyncio.gather(*(make(n) for n in range(first, first + AT_ONCE)))
    for version in ("2", "3", "4"):
        await workspace.publish(version)
        await workspace.applied(version, seconds=SOON_SECONDS)

    async def each_has_its_status() -> bool:
        return len(await reasons()) >= number

    await workspace.until(each_has_its_status, "each has its status", seconds=180)
    assert {*await reasons()} == {"SecondBaseVersion", "TooMany"}
    await workspace.publish("5")
    await workspace.applied("5", seconds=SOON_SECONDS)
