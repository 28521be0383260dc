"""Workers read weights from each kind of volume that a node without drivers has.

`nfs` and `csi` are not run: the cluster has no NFS server and no driver. Their samples go through a
real API server (tests/cluster/test_samples.py).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e.conftest import NAMESPACE, Fleet

import stack
from stack.volumes import CLAIM

pytestmark = pytest.mark.long
NAME = "kinds"
STARTS_SECONDS = 240
IMAGE = "rlfleet/weights:3"
STORAGE_CLASS = "own"
ROOTS = ("/node", "/claim", "/image", "/own", "/scratch")


def volume(name: str, **source: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/{name}", **source}


def static_storage(directory: str) -> list[dict[str, Any]]:
    """A storage class without a provisioner, and the one volume that a claim of it can get."""
    name = {"name": STORAGE_CLASS}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": name,
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": name,
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": STORAGE_CLASS,
                "hostPath": {"path": directory},
            },
        },
    ]


def fetching(step: int) -> dict[str, Any]:
    """An init container that brings a checkpoint into the pod's empty directory."""
    copy = f"import shutil; shutil.copytree('/claim/step_{step}', '/scratch/step_{step}')"
    return {
        "name": "fetch",
        "image": stack.WORKER_IMAGE,
        "command": ["python3", "-c", copy],
        "volumeMounts": [
            {"name": "claim", "mountPath": "/claim", "readOnly": True},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }


def manifest(directory: str, fetched: int) -> dict[str, Any]:
    """A fleet with a volume of each kind. `fetched`: the step that its init container brings."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE_CLASS}
    claim["resources"] = {"requests": {"storage": "1Gi"}}
    made = stack.fleet_manifest(NAME, replicas=1)
    made["spec"]["weights"] = {
        "roots": list(ROOTS),
        "volumes": [
            volume("node", hostPath={"path": directory}),
            volume("claim", persistentVolumeClaim={"claimName": CLAIM}),
            volume("image", image={"reference": IMAGE, "pullPolicy": "IfNotPresent"}),
            volume("own", ephemeral={"volumeClaimTemplate": {"spec": claim}}),
            volume("scratch", emptyDir={"sizeLimit": "64Mi"}),
        ],
    }
    made["spec"]["model"]["source"]["path"] = "/claim/base"
    made["spec"]["podOverlay"] = {"spec": {"initContainers": [fetching(fetched)]}}
    return made


def test_a_fleet_loads_from_each_kind_of_volume(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    steps = {root: fleet.next_step() for root in ROOTS}  # other tests have spoiled those they used
    of_claim = json.loads(fleet.kubectl("get", "pv", f"weights-{NAMESPACE}", "-o", "json").stdout)
    directory = of_claim["spec"]["hostPath"]["path"]
    in_image = steps["/image"]
    fleet.cluster.load_image(IMAGE, {f"/step_{in_image}": fleet.folder(in_image)})
    first = str(steps["/node"])
    wanted = stack.weights_manifest(NAME, fleet=NAME, version=first)
    wanted["spec"]["source"]["path"] = "/node/step_{version}"
    made = manifest(directory, steps["/scratch"])
    # A fleet that is left behind fails the tests after this one, too.
    request.addfinalizer(lambda: remove(fleet))
    fleet.apply(*static_storage(directory), made, wanted)
    fleet.wait_ready(f"wv/{NAME}", seconds=STARTS_SECONDS)

    for root, number in steps.items():
        patch = {"spec": {"version": str(number), "source": {"path": f"{root}/step_{{version}}"}}}
        fleet.kubectl("patch", "wv", NAME, "--type=merge", "-p", json.dumps(patch))
        fleet.wait_ready(f"wv/{NAME}")
        fleet.eventually(
            lambda number=number, root=root: (
                applied(fleet) == (str(number), f"{root}/step_{number}")
            ),
            f"the fleet has applied version {number} of {root}",
        )

    mounts = fleet.get(f"pod/{NAME}-0")["spec"]["containers"][0]["volumeMounts"]
    written = {m["mountPath"]: m.get("readOnly", False) for m in mounts}
    assert all(written[root] for root in ROOTS), written


def applied(fleet: Fleet) -> tuple[str, str]:
    found = fleet.get(f"ifl/{NAME}")["status"]["applied"]
    return found["version"], found["source"]["path"]


def remove(fleet: Fleet) -> None:
    fleet.kubectl("delete", "ifl,wv", NAME)
    fleet.cluster.kubectl("delete", "pv,storageclass", STORAGE_CLASS)
