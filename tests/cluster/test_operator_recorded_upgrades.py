"""An upgrade of CRDs, chart and operator restarts no worker of a fleet that a release before left.

The states in `recorded/` are those of earlier releases, each with the CRDs of its time. The file of
the coming release is written by

    RLFLEET_RECORD=0.1.0 make pytest LONG=1 ARGS=tests/cluster/test_operator_recorded_upgrades.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster.support.admin import Json
from tests.cluster.support.fixtures import NAMESPACE, RELEASE, install
from tests.cluster.support.stored_state import CHILDREN, ROOTS, play, record
from tests.cluster.support.workspace import Release, Workspace

from devcluster import Cluster
from rlfleet_resources import names

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
STATES = sorted(RECORDED.glob("state_*.yaml"))
NOT_INSTALLED = Release(name=RELEASE, namespace=NAMESPACE, arguments=(), token="")
ADMIN_PORT = 18_081
"""A recording holds it in a hash, so that it cannot be a free one."""
SPEC: Json = {
    "engine": {
        "args": ["--max-model-len=16384"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "tensorParallelSize": 2,
    },
    "resources": {"limits": {"memory": "2048Mi"}, "requests": {"cpu": "1"}},
    "adapters": {"max": 1},
    "pod": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "podOverlay": {"metadata": {"annotations": {"example.org/team": "rl"}}},
}
"""Fields of the recorded fleets that change a pod."""


@pytest.fixture
def older_cluster(devcluster_api_possible: None) -> Iterator[Cluster]:
    """A control plane without CRDs and chart of this tree."""
    with Cluster.start(profile="api") as cluster:
        yield cluster


def recorded(file: Path) -> list[Json]:
    return list(yaml.safe_load_all(file.read_text()))


def install_earlier_crds(cluster: Cluster, recording: list[Json], folder: Path) -> None:
    """Install the recorded CRDs with helm, as the chart of their release did."""
    chart = folder / "earlier"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: rlfleet, version: 0.0.1}\n")
    crds = [o for o in recording if o["kind"] == "CustomResourceDefinition"]
    (chart / "templates/crds.yaml").write_text(yaml.safe_dump_all(crds))
    cluster.helm("install", RELEASE, str(chart), "-n", NAMESPACE, "--create-namespace")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")


async def identities(workspace: Workspace) -> dict[str, str]:
    """Uids of the workers' pods by name."""
    pods = await workspace.objects("pods")
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


async def all_run(workspace: Workspace) -> bool:
    return len(workspace.kubelet.ports) == 2 and all(
        w.label == "2" for w in workspace.kubelet.workers
    )


async def update_available(workspace: Workspace) -> Json | None:
    return await workspace.condition("UpdateAvailable", of="inferencefleets")


@pytest.mark.long  # tests/contract/test_recorded_states.py holds that the revision stays
@pytest.mark.parametrize("file", STATES, ids=lambda file: file.stem)
async def test_no_worker_of_an_earlier_release_is_restarted_before_its_template_changes(
    older_cluster: Cluster, tmp_path: Path, file: Path
) -> None:
    recording = recorded(file)
    install_earlier_crds(older_cluster, recording, tmp_path)
    async with Workspace(older_cluster, NOT_INSTALLED, tmp_path) as workspace:
        await play(workspace, recording, manager=names.FIELD_MANAGER)
        await workspace.until(
            partial(all_run, workspace), "both workers start on the recorded version"
        )
        for worker in workspace.kubelet.workers:
            worker.admitted = True  # as the operator before has left them
        before, records = await identities(workspace), await recorded_templates(workspace)

        workspace.release = install(older_cluster, RELEASE, NAMESPACE)
        await workspace.start_operator()
        await workspace.applied("2", replicas=2)
        await workspace.publish("3")
        await workspace.applied("3", replicas=2)

        assert await identities(workspace) == before
        assert await recorded_templates(workspace) == records
        assert [worker.restarts for worker in workspace.kubelet.workers] == [0, 0]

        overlay = {"metadata": {"annotations": {"example.org/team": "eval"}}}
        await workspace.change_fleet(podOverlay=overlay)

        async def replaced() -> bool:
            now = await identities(workspace)
            return now.keys() == before.keys() and not now.items() & before.items()

        await workspace.until(replaced, "another template replaces all workers", seconds=120)
        await workspace.applied("3", replicas=2)


async def recorded_templates(workspace: Workspace) -> set[str]:
    return set(await workspace.objects("controllerrevisions", root="/apis/apps/v1"))


@pytest.mark.long
@pytest.mark.usefixtures("shared_operator")
async def test_the_state_of_this_release_is_recorded(workspace: Workspace, tmp_path: Path) -> None:
    workspace.admin_port = ADMIN_PORT
    await workspace.make_fleet(replicas=2, version="1", **SPEC)
    await workspace.applied("1", replicas=2)
    await workspace.publish("2")
    await workspace.applied("2", replicas=2)
    crds = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]

    recording = await record(workspace, crds)

    version = os.environ.get("RLFLEET_RECORD")
    file = RECORDED / f"state_{version}.yaml" if version else tmp_path / "state.yaml"
    file.write_text(yaml.safe_dump_all(recording, width=100, default_flow_style=None))
    kinds = [made["kind"] for made in yaml.safe_load_all(file.read_text())]
    assert set(kinds) == {"CustomResourceDefinition", *ROOTS, *CHILDREN}
    assert kinds.count("Pod") == 2
    (secret,) = (made for made in recording if made["kind"] == "Secret")
    assert set(secret["data"].values()) == {""}, "no token is in a recording"
