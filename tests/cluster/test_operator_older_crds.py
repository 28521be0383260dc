"""An operator whose CRDs are of an older release writes what they permit, and reports what they lack."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.support.fixtures import NAMESPACE, RELEASE, install
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import FLEET, Release, Workspace

from devcluster import Cluster
from fleet_operator.runtime.served_schemas import LOOK_SECONDS

ROOT = Path(__file__).parents[2]
LACKING = {
    "inferencefleets": ("sourcesInUse", "endpoint"),
    "weightversions": ("history", "timings"),
}
SEEN_SECONDS = LOOK_SECONDS + 20
"""The API server publishes a new schema after a moment."""


@pytest.fixture
def older_cluster(
    devcluster_api_possible: None, tmp_path: Path
) -> Iterator[tuple[Cluster, Release]]:
    """A control plane with the chart, and with CRDs of an older release."""
    with Cluster.start(profile="api") as cluster:
        put_crds(cluster, tmp_path, older=True)
        release = install(cluster, RELEASE, NAMESPACE, "crds.enabled=false")
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        yield cluster, release


def put_crds(cluster: Cluster, folder: Path, *, older: bool) -> None:
    """Install the CRDs of this release, or older ones."""
    for plural, fields in LACKING.items():
        crd = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())
        if older:
            (version,) = crd["spec"]["versions"]
            status = without_kept_fields(
                version["schema"]["openAPIV3Schema"]["properties"]["status"]
            )
            for field in fields:
                del status["properties"][field]
            version["schema"]["openAPIV3Schema"]["properties"]["status"] = status
        file = folder / f"{plural}.yaml"
        file.write_text(yaml.safe_dump(crd))
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))


def without_kept_fields(schema: Any) -> Any:
    """The schema of a release whose CRDs did not keep unknown fields."""
    if isinstance(schema, list):
        return [without_kept_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return copy.deepcopy(schema)
    kept = "x-kubernetes-preserve-unknown-fields"
    return {k: without_kept_fields(v) for k, v in schema.items() if k != kept}


@pytest.mark.long  # tests/unit/runtime/test_served_schemas.py has the same without a cluster
async def test_statuses_are_true_under_older_crds_and_whole_after_an_update_of_the_crds(
    older_cluster: tuple[Cluster, Release], tmp_path: Path
) -> None:
    cluster, release = older_cluster
    async with Workspace(cluster, release, tmp_path) as workspace:
        operator = await workspace.start_operator()
        await workspace.make_fleet(replicas=2, version="1")
        await workspace.applied("1", replicas=2)
        await workspace.publish("2")
        await workspace.applied("2", replicas=2)

        stalled = await workspace.condition("Stalled", of="inferencefleets")
        ready = await workspace.condition("Ready", of="inferencefleets")
        assert stalled is not None
        assert ready is not None
        assert (stalled["reason"], ready["status"]) == ("CRDOutdated", "True")
        assert "status.sourcesInUse" in stalled["message"]
        assert "status.history" in stalled["message"]
        await workspace.until(lambda: has_event(workspace, "CRDOutdated"), "the Event is posted")
        status, text = await operator.page("/readyz")
        assert status == 200
        assert "status.endpoint" in text
        assert await operator.metric("rlfleet_operator_crd_missing_fields") == 4
        assert "CRDOutdated" in await doctor(workspace)
        assert refused(operator) == []
        for plural, fields in LACKING.items():
            found = await workspace.admin.get(workspace.path(plural))
            assert found is not None
            assert not found["status"].keys() & set(fields)

        put_crds(cluster, tmp_path, older=False)

        async def is_whole() -> bool:
            fleet, weights = await workspace.fleet(), await workspace.weights()
            written = fleet["status"].keys() | weights["status"].keys()
            still = await workspace.condition("Stalled", of="inferencefleets")
            return still is None and written >= {f for fields in LACKING.values() for f in fields}

        await workspace.until(is_whole, "all is written, and not stalled", seconds=SEEN_SECONDS)
        await workspace.until(lambda: has_event(workspace, "Recovered"), "the Event is posted")
        assert await operator.metric("rlfleet_operator_crd_missing_fields") == 0
        assert (await operator.page("/readyz"))[1] == "ok\n"
        history = (await workspace.weights())["status"]["history"]
        assert [entry["version"] for entry in history] == ["2", "1"]

        put_crds(cluster, tmp_path, older=True)
        await workspace.publish("3")
        await workspace.applied("3", replicas=2)

        async def is_reported() -> bool:
            found = await workspace.condition("Stalled", of="inferencefleets")
            return found is not None and found["reason"] == "CRDOutdated"

        await workspace.until(is_reported, "older CRDs are reported", seconds=SEEN_SECONDS)


def refused(operator: OperatorProcess) -> list[str]:
    return [
        f"{r.path}: {r.status}"
        for r in operator.proxy.requests
        if r.path.endswith("/status") and r.status >= 400 and r.status != 409
    ]


async def has_event(workspace: Workspace, reason: str) -> bool:
    page = await workspace.admin.get(f"/api/v1/namespaces/{workspace.namespace}/events")
    events = (page or {}).get("items", ())
    return any(e["reason"] == reason and e["involvedObject"]["name"] == FLEET for e in events)


async def doctor(workspace: Workspace) -> str:
    """The lines of `rlfleet doctor`."""
    program = "from rlfleet.cli import main; main()"
    where = ("-n", workspace.namespace, "--kubeconfig", str(workspace.cluster.kubeconfig))
    call = [sys.executable, "-c", program, "doctor", *where, "-o", "json"]
    done = await asyncio.to_thread(
        subprocess.run, call, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
