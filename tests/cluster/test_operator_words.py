"""What a person reads who knows nothing but `kubectl get` and `kubectl describe`."""

from __future__ import annotations

import re
from typing import Any

from tests.cluster.support.stage import FLEET, Stage


async def _stalled(stage: Stage, *, of: str = "weightversions") -> str:
    """Wait for the condition. Returns: its reason."""
    found = await stage.until(lambda: stage.condition("Stalled", of=of), "something is stalled")
    return str(found["reason"])


async def _described(stage: Stage, what: str) -> str:
    """The description with its Events, in one line each."""

    async def posted() -> str:
        text = await stage.kubectl("describe", f"{what}/{FLEET}")
        return text if "Warning" in text else ""

    return re.sub(r"[ \t]+", " ", await stage.until(posted, "the event is posted"))


async def test_a_refused_version_says_what_is_wrong_what_serves_and_what_to_do(
    stage: Stage,
) -> None:
    await stage.start_operator()
    stage.kubelet.bad_sources.add("/weights/step_2")
    await stage.make_fleet(replicas=3, version="1")
    await stage.applied("1")
    await stage.publish("2")
    reason = await _stalled(stage)

    for what in ("wv", "ifl"):
        told = await _described(stage, what)
        assert f"Reason: {reason}\n Status: True\n Type: Stalled" in told
        assert "cannot take version 2 (/weights/step_2)" in told
        for pod in ("policy-0", "policy-1", "policy-2"):
            assert f"Pod: {pod}" in told
        assert "The applied version keeps serving" in told
        assert "repair the source or publish another version" in told
        assert re.search(rf"Warning {reason} .*rlfleet-operator .*version 2", told)
        assert "Applied Version: 1" in told
        assert "Desired Version: 2" in told
        assert "nothing is left to do" not in told
    assert re.search(r"policy +False +policy +2 +1 ", await stage.kubectl("get", "wv"))
    assert re.search(rf"policy +False +3 +3 +2 +1 +{reason} ", await stage.kubectl("get", "ifl"))


async def test_workers_that_no_node_can_take_are_told_in_the_schedulers_own_words(
    stage: Stage,
) -> None:
    await stage.start_operator()
    limits = {"limits": {"nvidia.com/gpu": 1}}
    await stage.make_fleet(replicas=2, resources=limits, progressDeadlineSeconds=1)
    assert await _stalled(stage, of="inferencefleets") == "WorkersFailing"

    told = await _described(stage, "ifl")
    assert "2 workers cannot run. policy-0: Unschedulable: 0/1 nodes are available" in told
    assert "1 Insufficient nvidia.com/gpu" in told
    assert "Reason: WorkersFailing\n Status: True\n Type: Stalled" in told
    assert re.search("Warning WorkersFailing .*rlfleet-operator .*Insufficient", told)
    assert "nothing is left to do" not in told


async def test_a_pointer_to_no_fleet_says_which_one_is_missing(stage: Stage) -> None:
    await stage.start_operator()
    await stage.make_fleet(replicas=1)
    await stage.kubectl("delete", f"ifl/{FLEET}", "--wait=false")
    assert await _stalled(stage) == "FleetNotFound"

    told = await _described(stage, "wv")
    assert f"there is no InferenceFleet 'policy' in namespace '{stage.namespace}'" in told
    assert "create it" in told


async def test_a_quiet_fleet_reads_the_same_again(stage: Stage) -> None:
    """No message holds a running clock: a fleet at rest has an unchanging status."""
    await stage.start_operator("--resync-seconds=1")
    stage.kubelet.bad_sources.add("/weights/step_2")
    await stage.make_fleet(replicas=2, version="1")
    await stage.applied("1", replicas=2)
    await stage.publish("2")
    await _stalled(stage)
    (operator,) = stage.operators

    async def looked(times: float) -> None:
        until = await operator.metric("rlfleet_reconcile_seconds_count") + times

        async def has() -> bool:
            return await operator.metric("rlfleet_reconcile_seconds_count") >= until

        await stage.until(has, "the operator looks again")

    async def statuses() -> list[Any]:
        await looked(3)
        return [made["status"] for made in (await stage.fleet(), await stage.weights())]

    assert await statuses() == await statuses()
