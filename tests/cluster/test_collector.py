"""The collector with the chart's account at a real API server, next to an operator and its fleet."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.support.api_proxy import ApiProxy
from tests.cluster.support.workspace import FLEET, Workspace
from tests.cluster.test_operator_chart import Rendered
from tests.support.collector import date, names_in, write_versions

from rlfleet_resources.names import heartbeat_name
from stack.volumes import CLAIM

ROOT = Path(__file__).parents[2]
NEEDED = {
    ("rlfleet.dev", "inferencefleets", "list"),
    ("rlfleet.dev", "weightversions", "list"),
    ("coordination.k8s.io", "leases", "list"),
    ("", "events", "create"),
}


async def test_old_versions_go_with_the_rights_of_the_chart_and_no_others(
    workspace: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "run-7"
    write_versions(folder, 1, 2, 3, 4)
    date(folder)
    await workspace.start_operator()
    await workspace.make_fleet(replicas=1, version="0", weights=_weights(folder))
    source = {"path": f"{folder}/step_{{version}}"}
    for version in ("1", "2", "3"):
        await workspace.publish(version, source=source, retention={"keep": 1})
        await workspace.applied(version, replicas=1, weights=f"{version}~run-7")

    async def has_heartbeat() -> bool:
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{workspace.namespace}/leases"
        name = heartbeat_name((await workspace.fleet())["status"]["operator"])
        return name in {
            each["metadata"]["name"] for each in (await workspace.admin.get(leases))["items"]
        }

    await workspace.until(has_heartbeat, "the operator has written its heartbeat")
    async with ApiProxy(workspace.credentials) as proxy:
        config = proxy.kubeconfig(tmp_path, await _account(workspace))
        code, log = await _collected(workspace.namespace, tmp_path, config)
        assert code == 0, log
        # 3 is applied, 2 was before it, and 4 is not published yet.
        assert names_in(folder) == ["step_2", "step_3", "step_4"]
        assert [r for r in proxy.requests if r.status >= 400] == []
        assert proxy.rights() == NEEDED

    events = await workspace.admin.get(f"/api/v1/namespaces/{workspace.namespace}/events")
    (told,) = (e for e in events["items"] if e["reason"] == "OldVersionsDeleted")
    assert told["involvedObject"]["name"] == FLEET
    assert "deleted 1 version" in told["message"]
    await workspace.publish("2", rollbackTo="2")
    await workspace.applied("2", replicas=1, weights="2~run-7")


def _weights(folder: Path) -> dict[str, Any]:
    """`spec.weights` of a fleet that mounts the folder where it is on this machine."""
    claim = {"claimName": CLAIM}
    volume = {"name": "weights", "mountPath": str(folder), "persistentVolumeClaim": claim}
    return {"roots": [str(folder)], "volumes": [volume]}


async def _account(workspace: Workspace) -> str:
    """The chart's account for the collector of this namespace. Returns: a token."""
    collector = {
        "namespace": workspace.namespace,
        "mountPath": "/weights",
        "runAsUser": 1000,
        "volume": {"emptyDir": {}},
    }
    made = await asyncio.to_thread(
        Rendered, workspace.cluster, f"collectors={json.dumps([collector])}"
    )
    ours = [o for o in made.objects if o["metadata"].get("namespace") == workspace.namespace]
    assert {o["kind"] for o in ours} == {"ServiceAccount", "Role", "RoleBinding", "CronJob"}
    apply = ("apply", "-f", "-")
    await asyncio.to_thread(workspace.cluster.kubectl, *apply, stdin=yaml.safe_dump_all(ours))
    return (await workspace.kubectl("create", "token", "rlfleet-collector")).strip()


async def _collected(namespace: str, root: Path, kubeconfig: Path) -> tuple[int, str]:
    """One run of the collector's process. Returns: its exit code and its log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fleet_collector", f"--namespaces={namespace}", f"--roots={root}"),
        *("--grace-seconds=75", "--log-format=text"),
        env=os.environ
        | {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join(str(ROOT / p) for p in ("client", "operator", "worker")),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await asyncio.wait_for(process.communicate(), 180)
    return process.returncode or 0, log.decode()
