"""The manifests of the tutorial's pages, as a real API server judges them.

The pages for kind and for GPUs cannot be run here: there is no container engine and no GPU.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.cluster.support.namespaces import scratch_namespace
from tests.cluster.support.workspace import Release
from tests.support.pages import in_namespace

from devcluster import Cluster

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial"
APPLIED = re.compile(r"-f docs/tutorial/([\w-]+\.yaml)")
MANIFESTS = sorted({f for page in TUTORIAL.glob("*.md") for f in APPLIED.findall(page.read_text())})


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_server_takes_a_manifest_that_a_page_applies(
    devcluster_api: Cluster, release: Release, name: str
) -> None:
    assert release.name, "the CRDs are those of the chart"
    with scratch_namespace(devcluster_api) as namespace:
        manifest = in_namespace((TUTORIAL / name).read_text(), namespace)
        strict = ("--validate=strict", "--dry-run=server", "-f", "-")
        done = devcluster_api.kubectl("apply", "-n", namespace, *strict, stdin=manifest)

    assert done.stdout.count("(server dry run)") == len(list(yaml.safe_load_all(manifest)))


def test_every_manifest_of_the_tutorial_is_applied_by_a_page() -> None:
    files = {file.name for file in TUTORIAL.glob("*.yaml")}

    assert files - {"kind.yaml"} == set(MANIFESTS)


def test_the_node_of_kind_has_the_folder_of_the_volume() -> None:
    """Source of the fields: kind, pkg/apis/config/v1alpha4 (Cluster, Node, Mount)."""
    kind = yaml.safe_load((TUTORIAL / "kind.yaml").read_text())
    (node,) = kind["nodes"]
    (mount,) = node["extraMounts"]
    (volume, _) = yaml.safe_load_all((TUTORIAL / "volume.yaml").read_text())

    assert (kind["apiVersion"], kind["kind"]) == ("kind.x-k8s.io/v1alpha4", "Cluster")
    assert mount.keys() == {"hostPath", "containerPath"}
    assert volume["spec"]["hostPath"]["path"] == mount["containerPath"]
    assert f"--name {kind['name']}" in (TUTORIAL / "kind.md").read_text()
