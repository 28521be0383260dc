"""The output of `kubectl get` and `kubectl describe` is enough for a user without the documentation."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.cluster.support.workspace import FLEET, Workspace


async def _stalled(workspace: Workspace, *, of: str = "weightversions") -> str:
    """Wait for the condition. Returns: its reason."""
    found = await workspace.until(
        lambda: workspace.condition("Stalled", of=of), "something is stalled"
    )
    return str(found["reason"])


async def _described(workspace: Workspace, what: str) -> str:
    """The description with its Events, in one line each."""

    async def posted() -> str:
        text = await workspace.kubectl("describe", f"{what}/{FLEET}")
        return text if "Warning" in text else ""

    return re.sub(r"[ \t]+", " ", await workspace.until(posted, "the event is posted"))


@pytest.mark.usefixtures("shared_operator")
async def test_a_refused_version_is_described_with_its_cause_the_applied_version_and_a_remedy(
    workspace: Workspace,
) -> None:
    workspace.kubelet.bad_sources.add("/weights/step_2")
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    await workspace.publish("2")
    reason = await _stalled(workspace)

    for what in ("wv", "ifl"):
        text = await _described(workspace, what)
        assert f"Reason: {reason}\n Status: True\n Type: Stalled" in text
        assert "version 2 (/weights/step_2)" in text
        for pod in ("policy-0", "policy-1", "policy-2"):
            assert f"Pod: {pod}" in text
        assert "The fleet stays on the applied version" in text
        assert "repair the source or publish another version" in text
        assert re.search(rf"Warning {reason} .*rlfleet-operator .*version 2", text)
        assert "Applied Version: 1" in text
        assert "Desired Version: 2" in text
        assert "the fleet is up to date" not in text
    assert re.search(r"policy +False +policy +2 +1 ", await workspace.kubectl("get", "wv"))
    assert re.search(
        rf"policy +False +3 +3 +2 +1 +{reason} ", await workspace.kubectl("get", "ifl")
    )


@pytest.mark.usefixtures("shared_operator")
async def test_an_unschedulable_worker_is_reported_with_the_message_of_the_scheduler(
    workspace: Workspace,
) -> None:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    await workspace.make_fleet(replicas=2, resources=limits, progressDeadlineSeconds=1)
    assert await _stalled(workspace, of="inferencefleets") == "WorkersFailing"

    async def both() -> str:
        """The pods are not created at the same moment, so the first one is overdue before the other."""
        text = await _described(workspace, "ifl")
        return text if "2 workers cannot run." in text else ""

    text = await workspace.until(both, "both workers are overdue")
    assert "policy-0: Unschedulable: 0/1 nodes are available" in text
    assert "1 Insufficient nvidia.com/gpu" in text
    assert "Reason: WorkersFailing\n Status: True\n Type: Stalled" in text
    assert re.search("Warning WorkersFailing .*rlfleet-operator .*Insufficient", text)
    assert "the fleet is up to date" not in text


@pytest.mark.long  # the operator waits 30 s for the fleet; tests/unit/runtime/test_unowned_weights.py
@pytest.mark.usefixtures("shared_operator")
async def test_a_weight_version_without_a_fleet_names_the_missing_fleet(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=1)
    await workspace.kubectl("delete", f"ifl/{FLEET}", "--wait=false")
    assert await _stalled(workspace) == "FleetNotFound"

    text = await _described(workspace, "wv")
    assert f"there is no InferenceFleet 'policy' in namespace '{workspace.namespace}'" in text
    assert "create it" in text


async def test_the_status_of_an_idle_fleet_does_not_change(workspace: Workspace) -> None:
    """No message holds a running clock: a fleet at rest has an unchanging status."""
    await workspace.start_operator("--resync-seconds=1")
    workspace.kubelet.bad_sources.add("/weights/step_2")
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    await workspace.publish("2")
    await _stalled(workspace)
    (operator,) = workspace.operators

    async def looked(times: float) -> None:
        until = await operator.metric("rlfleet_reconcile_seconds_count") + times

        async def has() -> bool:
            return await operator.metric("rlfleet_reconcile_seconds_count") >= until

        await workspace.until(has, "the operator looks again")

    async def statuses() -> list[Any]:
        await looked(3)
        return [made["status"] for made in (await workspace.fleet(), await workspace.weights())]

    assert await statuses() == await statuses()
