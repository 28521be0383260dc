"""Every sample goes through a real API server: the valid ones are taken, the others refused with
the words that their first line promises."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster import Cluster
from fleet_operator.api.fleet import FleetSpec, FleetStatus
from fleet_operator.core import children, pods
from fleet_operator.core.observed import FleetObserved

CRDS = Path(__file__).parents[2] / "crds"
VALID = sorted((CRDS / "samples" / "valid").glob("*.yaml"))
INVALID = sorted((CRDS / "samples" / "invalid").glob("*.yaml"))


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    for crd in sorted(CRDS.glob("*.yaml")):
        devcluster_api.kubectl("apply", "--server-side", "-f", str(crd))
    devcluster_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    return devcluster_api


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"samples-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def documents(sample: Path) -> list[str]:
    return [yaml.safe_dump(d) for d in yaml.safe_load_all(sample.read_text())]


def apply(cluster: Cluster, namespace: str, document: str, *, check: bool = True):
    arguments = ("apply", "-n", namespace, "--validate=strict", "-f", "-")
    return cluster.kubectl(*arguments, stdin=document, check=check)


@pytest.mark.parametrize("sample", VALID, ids=lambda path: path.stem)
def test_a_valid_sample_is_taken(cluster, namespace, sample):
    for document in documents(sample):
        apply(cluster, namespace, document)


@pytest.mark.parametrize("sample", VALID, ids=lambda path: path.stem)
def test_a_server_that_only_tries_a_valid_sample_takes_it_and_keeps_nothing(
    cluster, namespace, sample
):
    first = documents(sample)[0]
    arguments = ("apply", "-n", namespace, "--validate=strict", "--dry-run=server", "-f", "-")
    answer = cluster.kubectl(*arguments, stdin=first)

    assert "(server dry run)" in answer.stdout
    assert cluster.kubectl("get", "ifl,wv", "-n", namespace, "-o", "name").stdout == ""


@pytest.mark.parametrize("sample", [p for p in VALID if "fleet" in p.stem], ids=lambda p: p.stem)
def test_the_pod_and_the_service_of_a_fleet_are_what_a_real_api_server_takes(
    cluster, namespace, sample
):
    """No kubelet runs here: whether volumes can be mounted is not asked."""
    apply(cluster, namespace, documents(sample)[-1])
    stored = json.loads(cluster.kubectl("get", "ifl", "-n", namespace, "-o", "json").stdout)
    (fleet,) = stored["items"]
    observed = FleetObserved(
        name=fleet["metadata"]["name"],
        namespace=namespace,
        uid=fleet["metadata"]["uid"],
        generation=1,
        spec=FleetSpec.model_validate(fleet["spec"]),
        status=FleetStatus(),
    )
    pod = pods.build_pod(observed, 0, "rlfleet/worker:1", revision="r")
    # Admission looks for these; who creates them is not the question here.
    for admitted in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        pod["spec"].pop(admitted, None)
    arguments = ("create", "-n", namespace, "--validate=strict", "--dry-run=server", "-f", "-")
    cluster.kubectl("create", "serviceaccount", "default", "-n", namespace, check=False)

    for made in (pod, children.service(observed)):
        answer = cluster.kubectl(*arguments, stdin=json.dumps(made))
        assert "(server dry run)" in answer.stdout


@pytest.mark.parametrize("sample", INVALID, ids=lambda path: path.stem)
def test_an_invalid_sample_is_refused_with_a_message_that_names_the_field(
    cluster, namespace, sample
):
    promised = sample.read_text().splitlines()[0].removeprefix("# refused: ")
    *taken, refused = documents(sample)
    for document in taken:
        apply(cluster, namespace, document)

    answer = apply(cluster, namespace, refused, check=False)

    assert answer.returncode != 0
    assert promised in answer.stderr


def test_defaults_are_filled_in_by_the_api_server(cluster, namespace):
    apply(cluster, namespace, documents(CRDS / "samples/valid/fleet-smallest.yaml")[0])

    answer = cluster.kubectl("get", "ifl", "policy", "-n", namespace, "-o", "yaml")
    spec = yaml.safe_load(answer.stdout)["spec"]

    assert spec["replicas"] == 1
    assert spec["serving"] == {"port": 8000, "adminPort": 8081, "metricsPort": 8082}
    assert spec["rollout"]["timeouts"] == {
        "checkpointSeconds": 3600,
        "stageSeconds": 900,
        "pauseSeconds": 60,
        "loadSeconds": 600,
    }


def test_an_unknown_field_is_pruned_where_validation_is_not_strict(cluster, namespace):
    (document,) = documents(CRDS / "samples/invalid/weights-unknown-field.yaml")
    arguments = ("apply", "-n", namespace, "--validate=false", "-f", "-")
    cluster.kubectl(*arguments, stdin=document)

    answer = cluster.kubectl("get", "wv", "policy", "-n", namespace, "-o", "yaml")

    assert "colour" not in yaml.safe_load(answer.stdout)["spec"]


def test_scale_goes_through_the_scale_subresource(cluster, namespace):
    apply(cluster, namespace, documents(CRDS / "samples/valid/fleet-smallest.yaml")[0])
    cluster.kubectl("scale", "ifl/policy", "--replicas=5", "-n", namespace)

    answer = cluster.kubectl(
        "get", "ifl/policy", "-n", namespace, "-o", "jsonpath={.spec.replicas}"
    )

    assert answer.stdout == "5"


@pytest.mark.parametrize("crd", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_crd_stays_small_enough_for_client_side_apply(crd):
    assert crd.stat().st_size < 100_000
