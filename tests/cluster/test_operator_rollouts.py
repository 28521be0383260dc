"""The real operator on a real control plane: fleets come up, roll over, rest and are scaled."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.support.workspace import FLEET, Workspace
from tests.model.fake_state import digest_of
from tests.model.fake_worker import FakeWorker

from fleet_operator.runtime import status_writer

LOOKS = 5


@pytest.mark.usefixtures("shared_operator")
async def test_a_fleet_starts_and_takes_versions_through_the_whole_control_plane(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")

    pods = await workspace.objects("pods")
    assert sorted(pods) == [f"{FLEET}-{n}" for n in range(3)]
    assert {p["spec"]["nodeName"] for p in pods.values()} == {workspace.kubelet.node}
    assert sorted(await workspace.objects("services")) == [FLEET, f"{FLEET}-workers"]
    configmaps = await workspace.objects("configmaps")
    data = configmaps[f"{FLEET}-applied"]["data"]
    assert (data["version"], data["path"]) == ("1", "/weights/step_1")
    assert data["digest"] == digest_of("1")  # as the fake workers report it

    await workspace.publish("2")
    waited = await workspace.kubectl(
        "wait", "--for=condition=Ready", f"wv/{FLEET}", "--timeout=30s"
    )
    assert "condition met" in waited
    assert [w.weights for w in workspace.kubelet.workers if w.generates] == ["2", "2", "2"]

    status = (await workspace.weights())["status"]
    assert (status["phase"], status["workersApplied"]) == ("Applied", "3/3")
    assert [e["version"] for e in status["history"]][:2] == ["2", "1"]
    fleet = (await workspace.fleet())["status"]
    assert (fleet["replicas"], fleet["readyReplicas"], fleet["appliedVersion"]) == (3, 3, "2")
    assert (await workspace.objects("configmaps"))[f"{FLEET}-applied"]["data"]["version"] == "2"


async def test_an_idle_fleet_costs_no_write(workspace: Workspace) -> None:
    operator = await workspace.start_operator("--resync-seconds=1")
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    await _at_rest(workspace)
    writes = len(operator.proxy.writes)

    await _looked_again(workspace)

    assert [f"{w.method} {w.path}" for w in operator.proxy.writes[writes:]] == []


@pytest.mark.usefixtures("shared_operator")
async def test_kubectl_scales_and_the_last_worker_is_deleted_first(workspace: Workspace) -> None:
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.applied("1", replicas=1)

    await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=3")
    await workspace.applied("1", replicas=3)
    await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=2")
    await workspace.until(lambda: _are(workspace, 2), "one worker is gone")
    await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=0")
    await workspace.until(lambda: _are(workspace, 0), "all workers are gone")
    ready = await workspace.until(lambda: workspace.condition("Ready"), "a condition")
    assert (ready["status"], ready["reason"]) == ("False", "NoWorkers")

    await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=1")
    await workspace.applied("1", replicas=1)
    assert workspace.kubelet.worker(f"{FLEET}-0").start_version == "1"


@pytest.mark.usefixtures("shared_operator")
async def test_every_strategy_takes_its_version_to_all_workers(workspace: Workspace) -> None:
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")

    for version, strategy in enumerate(("InFlight", "Rolling", "Canary"), start=2):
        await workspace.publish(str(version), rollout={"strategy": strategy})
        await workspace.applied(str(version))
    assert (await workspace.weights())["status"]["canary"]["passed"] is True


@pytest.mark.usefixtures("shared_operator")
async def test_an_adapter_is_served_with_the_base_weights_and_restored_after_a_restart(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2, version="1", adapters={"max": 2})
    await workspace.applied("1", replicas=2)
    await workspace.make_adapter("math", version="1")

    def all_have(version: str) -> Callable[[], Awaitable[bool]]:
        async def have() -> bool:
            return [_adapters_of(w) for w in workspace.kubelet.workers] == [{"math": version}] * 2

        return have

    await workspace.until(all_have("1"), "all workers have the adapter")
    await workspace.kubectl("wait", "--for=condition=Ready", "wv/math", "--timeout=30s")
    await workspace.kubelet.kill(f"{FLEET}-1")
    worker = workspace.kubelet.worker(f"{FLEET}-1")
    await workspace.until(lambda: _generates(worker), "the worker is admitted again")
    assert _adapters_of(worker) == {"math": "1"}
    patch = '{"spec":{"version":"2"}}'
    await workspace.kubectl("patch", "wv/math", "--type=merge", "-p", patch)
    await workspace.until(all_have("2"), "all workers have the next version")
    await workspace.kubectl("delete", "wv/math")
    await workspace.until(lambda: _have_none(workspace), "no worker has it any more")
    await workspace.applied("1", replicas=2)


def _adapters_of(worker: FakeWorker) -> dict[str, str]:
    return {name: adapter.version for name, adapter in worker.adapters.items()}


async def _have_none(workspace: Workspace) -> bool:
    return not any(w.adapters for w in workspace.kubelet.workers)


async def _generates(worker) -> bool:
    return worker.generates


async def _are(workspace: Workspace, replicas: int) -> bool:
    expected = [f"{FLEET}-{n}" for n in range(replicas)]
    status = (await workspace.fleet())["status"]
    return sorted(await workspace.objects("pods")) == expected and status["replicas"] == replicas


async def _at_rest(workspace: Workspace) -> None:
    """Wait until the operator has long found nothing to write, not even what it held back."""
    (operator,) = workspace.operators

    async def rests() -> bool:
        await _looked_again(workspace)
        age = asyncio.get_running_loop().time() - operator.proxy.writes[-1].at
        return age > 1.5 * status_writer.PROGRESS_SECONDS

    await workspace.until(rests, "nothing more is written")


async def _looked_again(workspace: Workspace) -> None:
    """Wait for a few reconciles, asking for them."""
    (operator,) = workspace.operators
    until = await operator.metric("rlfleet_reconcile_seconds_count") + LOOKS

    async def has() -> bool:
        looked = f"looked={secrets.token_hex(4)}"
        await workspace.admin.merge(
            workspace.path("inferencefleets"), {"metadata": {"annotations": {"looked": looked}}}
        )
        return await operator.metric("rlfleet_reconcile_seconds_count") >= until

    await workspace.until(has, "the operator looks at the fleet")
