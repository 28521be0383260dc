"""Every sample goes through a real API server: the valid ones are taken, the others refused with their words."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from tests.cluster.support.admin import Admin, ApiError, Credentials, Json
from tests.support.builders import build_pod
from tests.support.fake_objects import merge_patched

from devcluster import Cluster
from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.manifests import children
from fleet_operator.core.observed import FleetObserved
from rlfleet_resources.fleet_status import FleetStatus

GROUP = "/apis/rlfleet.dev/v1alpha1"
CRDS = Path(__file__).parents[2] / "crds"
VALID = sorted((CRDS / "samples" / "valid").glob("*.yaml"))
EXAMPLES = CRDS.parent / "examples"
FLEETS = [p for p in VALID if "fleet" in p.stem] + sorted(EXAMPLES.glob("*/fleet.yaml"))
KNOWN_SINCE = {"fleet-devices": 31, "fleet-volumes": 31, "dra": 34}
"""First minor version of Kubernetes that has the fields of a sample's pod: device claims, image volumes."""
INVALID: dict[str, Json] = yaml.safe_load((CRDS / "samples" / "invalid.yaml").read_text())
SMALLEST = {"fleet": "fleet-smallest", "weights": "weights-path-template"}


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    for crd in sorted(CRDS.glob("*.yaml")):
        devcluster_api.kubectl("apply", "--server-side", "-f", str(crd))
    devcluster_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    return devcluster_api


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(Credentials(cluster.kubeconfig)) as admin:
        yield admin


@pytest.fixture
async def namespace(admin: Admin) -> AsyncIterator[str]:
    name = f"samples-{secrets.token_hex(4)}"
    await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    await admin.delete(f"/api/v1/namespaces/{name}")


def name_of(sample: Path) -> str:
    return sample.parent.name if sample.name == "fleet.yaml" else sample.stem


def documents(sample: Path) -> list[Json]:
    return list(yaml.safe_load_all(sample.read_text()))


async def apply(
    admin: Admin, namespace: str, document: Json, *, group: str = GROUP, options: str = ""
) -> Json:
    """Create an object, or replace it, as strictly as `kubectl apply`, without its half second."""
    path = f"{group}/namespaces/{namespace}/{document['kind'].lower()}s"
    strict = f"fieldValidation=Strict{options}"
    name = document["metadata"]["name"]
    if stored := await admin.get(f"{path}/{quote(name)}"):
        version = stored["metadata"]["resourceVersion"]
        document = document | {"metadata": {**document["metadata"], "resourceVersion": version}}
        return await admin.replace(f"{path}/{name}?{strict}", document)
    return await admin.create(f"{path}?{strict}", document)


@pytest.mark.parametrize("sample", VALID, ids=lambda path: path.stem)
async def test_a_valid_sample_is_taken(admin, namespace, sample):
    for document in documents(sample):
        await apply(admin, namespace, document)


@pytest.mark.parametrize("sample", FLEETS, ids=name_of)
async def test_the_pod_and_the_service_of_a_fleet_are_what_a_real_api_server_takes(
    admin, namespace, sample
):
    """No kubelet runs here: whether volumes can be mounted is not asked."""
    await skip_if_older(admin, KNOWN_SINCE.get(name_of(sample), 0))
    (manifest,) = (d for d in documents(sample) if d["kind"] == "InferenceFleet")
    manifest["metadata"].pop("namespace", None)
    fleet = await apply(admin, namespace, manifest)
    observed = FleetObserved(
        name=fleet["metadata"]["name"],
        namespace=namespace,
        uid=fleet["metadata"]["uid"],
        generation=1,
        spec=FleetSpec.model_validate(fleet["spec"]),
        status=FleetStatus(),
    )
    pod = build_pod(observed, 0, "rlfleet/worker:1", revision="r")
    # Admission looks for these; their creator does not matter here.
    for admitted in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        pod["spec"].pop(admitted, None)
    # The controller manager makes the same account: whichever comes first.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await admin.apply(f"{accounts}/default", account, manager="test")

    for made in (pod, children.service(observed)):
        answer = await apply(admin, namespace, made, group="/api/v1", options="&dryRun=All")
        assert answer["metadata"]["name"] == made["metadata"]["name"]


async def skip_if_older(admin: Admin, minor: int) -> None:
    found = int((await admin.get("/version"))["minor"])
    if found < minor:
        pytest.skip(f"Kubernetes 1.{found} does not know these fields")


@pytest.mark.parametrize("file", ["dra/claim.yaml", "s3-csi/volume.yaml", "tenant/namespace.yaml"])
async def test_what_an_example_brings_besides_its_fleet_is_taken(cluster, admin, namespace, file):
    await skip_if_older(admin, KNOWN_SINCE.get(file.partition("/")[0], 0))
    text = (EXAMPLES / file).read_text().replace("namespace: rl", f"namespace: {namespace}")

    answer = cluster.kubectl(
        "apply", "--validate=strict", "--dry-run=server", "-f", "-", stdin=text
    )

    assert answer.stdout.count("created (server dry run)") == text.count("apiVersion:")


def invalid(name: str, change: str = "change") -> Json:
    (smallest,) = documents(CRDS / f"samples/valid/{SMALLEST[name.partition('-')[0]]}.yaml")
    found: Json = merge_patched(smallest, INVALID[name][change])
    return found


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_sample_is_refused_with_a_message_that_names_the_field(
    admin, namespace, name
):
    *taken, refused = (change for change in ("change", "then") if change in INVALID[name])
    for change in taken:
        await apply(admin, namespace, invalid(name, change))

    with pytest.raises(ApiError) as refusal:
        await apply(admin, namespace, invalid(name, refused))

    assert refusal.value.status in {400, 422}
    assert INVALID[name]["refused"] in str(refusal.value)


async def test_defaults_are_filled_in_by_the_api_server(admin, namespace):
    (document,) = documents(CRDS / "samples/valid/fleet-smallest.yaml")

    spec = (await apply(admin, namespace, document))["spec"]

    assert spec["replicas"] == 1
    assert spec["serving"] == {"port": 8000, "adminPort": 8081, "metricsPort": 8082}
    assert spec["rollout"]["timeouts"] == {
        "checkpointSeconds": 3600,
        "stageSeconds": 900,
        "pauseSeconds": 60,
        "loadSeconds": 600,
    }


def test_an_unknown_field_is_pruned_where_validation_is_not_strict(cluster, namespace):
    document = yaml.safe_dump(invalid("weights-unknown-field"))
    cluster.kubectl("apply", "-n", namespace, "--validate=false", "-f", "-", stdin=document)

    answer = cluster.kubectl("get", "wv", "policy", "-n", namespace, "-o", "yaml")

    assert "colour" not in yaml.safe_load(answer.stdout)["spec"]


@pytest.mark.parametrize("crd", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_crd_stays_small_enough_for_client_side_apply(crd):
    assert crd.stat().st_size < 100_000
