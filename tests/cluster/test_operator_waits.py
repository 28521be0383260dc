"""Pods that wait for a gate or a node: progress, and `Stalled` only when their time is over."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import FLEET, Workspace
from tests.support.figures import figures
from tests.support.kstatus import kstatus

POOL = "example.com/pool"
GATE = {"name": "kueue.x-k8s.io/admission"}
ELSEWHERE = {"spec": {"nodeSelector": {POOL: "gpu"}}}
GATED = {"spec": {"schedulingGates": [GATE]}}
DEADLINE_SECONDS = 4


async def test_a_gated_pod_is_never_stalled_and_serves_when_its_gate_is_removed(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, podOverlay=GATED, progressDeadlineSeconds=0)
    await workspace.until(lambda: _lag(workspace, "SchedulingGated", 2), "both pods are gated")
    await _looked_again(workspace, operator)

    condition = await workspace.condition("Progressing", of="inferencefleets")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "WaitingForQuota")
    assert 2 in figures(condition["message"])
    assert "policy-0: SchedulingGated" in condition["message"]
    assert kstatus(await workspace.fleet()) == kstatus(await workspace.weights()) == "InProgress"

    await _let_go(workspace, f"{FLEET}-0", f"{FLEET}-1")
    await workspace.applied("1", replicas=2)
    assert operator.proxy.stalled() == []
    assert kstatus(await workspace.fleet()) == kstatus(await workspace.weights()) == "Current"


async def test_a_pod_without_a_node_is_progress_until_an_autoscaler_brings_one(
    workspace: Workspace,
) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=1, podOverlay=ELSEWHERE)
    await workspace.until(lambda: _lag(workspace, "Unschedulable", 1), "the pod finds no node")
    await _looked_again(workspace, operator)

    condition = await workspace.condition("Progressing", of="inferencefleets")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "WaitingForNode")
    assert 1 in figures(condition["message"])
    assert "policy-0: Unschedulable: 0/1 nodes" in condition["message"]
    assert kstatus(await workspace.fleet()) == kstatus(await workspace.weights()) == "InProgress"

    await _label_node(workspace)
    await workspace.applied("1", replicas=1)
    assert operator.proxy.stalled() == []


@pytest.mark.long  # tests/unit/core has the deadline; here it passes for real
async def test_the_deadline_of_a_gated_pod_starts_when_its_gate_is_removed(
    workspace: Workspace,
) -> None:
    """The transition time of PodScheduled does not move then: it stays that of the gated pod."""
    operator = await workspace.start_operator()
    both = {"spec": GATED["spec"] | ELSEWHERE["spec"]}
    await workspace.make_fleet(
        replicas=1, podOverlay=both, progressDeadlineSeconds=DEADLINE_SECONDS
    )
    await workspace.until(lambda: _lag(workspace, "SchedulingGated", 1), "the pod is gated")
    await _looked_again(workspace, operator, times=DEADLINE_SECONDS + 1)

    let_go = asyncio.get_running_loop().time()
    await _let_go(workspace, f"{FLEET}-0")
    condition = await workspace.until(
        lambda: workspace.condition("Stalled", of="inferencefleets"), "its time is over"
    )

    assert condition["reason"] == "WorkersFailing"
    assert "policy-0: Unschedulable" in condition["message"]
    assert operator.proxy.stalled()[0][0] - let_go >= DEADLINE_SECONDS
    assert kstatus(await workspace.fleet()) == "Failed"

    await _label_node(workspace)
    await workspace.applied("1", replicas=1)
    assert await workspace.condition("Stalled", of="inferencefleets") is None


async def test_an_object_is_in_progress_before_the_operator_has_seen_it(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=1)

    assert (await workspace.fleet())["status"] == {"observedGeneration": -1}
    assert kstatus(await workspace.fleet()) == kstatus(await workspace.weights()) == "InProgress"


async def _lag(workspace: Workspace, reason: str, number: int) -> bool:
    found = (await workspace.fleet()).get("status", {}).get("laggards", ())
    return sum(one["reason"] == reason for one in found) == number


async def _looked_again(workspace: Workspace, operator: OperatorProcess, *, times: int = 3) -> None:
    """The operator looks again, once a second while a pod is not ready."""
    until = await operator.metric("rlfleet_reconcile_seconds_count") + times

    async def has() -> bool:
        return await operator.metric("rlfleet_reconcile_seconds_count") >= until

    await workspace.until(has, "the operator looks again")


async def _let_go(workspace: Workspace, *pods: str) -> None:
    """Admit pods, as a queue does."""
    patch: list[dict[str, Any]] = [{"op": "remove", "path": "/spec/schedulingGates"}]
    for pod in pods:
        await workspace.kubectl("patch", "pod", pod, "--type=json", "-p", json.dumps(patch))


async def _label_node(workspace: Workspace) -> None:
    """Add a node that fits, as an autoscaler does."""
    labels = {"metadata": {"labels": {POOL: "gpu"}}}
    await workspace.admin.merge(f"/api/v1/nodes/{workspace.kubelet.node}", labels)
