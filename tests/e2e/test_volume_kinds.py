"""Workers read weights from each kind of volume that a node without drivers has."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.conftest import NAMESPACE, Fleet

import stack
from stack.volumes import CLAIM

NAME = "kinds"
STARTS_SECONDS = 240


def volume(name: str, **source: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/{name}", **source}


def test_a_fleet_loads_from_a_claim_and_from_a_directory_of_its_node(fleet: Fleet) -> None:
    manifest = stack.fleet_manifest(NAME, replicas=1)
    claim = {"persistentVolumeClaim": {"claimName": CLAIM}}
    of_claim = json.loads(fleet.kubectl("get", "pv", f"weights-{NAMESPACE}", "-o", "json").stdout)
    directory = {"hostPath": of_claim["spec"]["hostPath"]}
    manifest["spec"]["weights"] = {
        "roots": ["/claim", "/node", "/scratch"],
        "volumes": [
            volume("claim", **claim),
            volume("node", **directory),
            volume("scratch", emptyDir={"sizeLimit": "64Mi"}, readOnly=False),
        ],
    }
    manifest["spec"]["model"]["source"]["path"] = "/claim/base"
    wanted = stack.weights_manifest(NAME, fleet=NAME, version="1")
    wanted["spec"]["source"]["path"] = "/node/step_{version}"
    objects = {"apiVersion": "v1", "kind": "List", "items": [manifest, wanted]}
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
    fleet.wait_ready(f"wv/{NAME}", seconds=STARTS_SECONDS)

    patch = {"spec": {"version": "2", "source": {"path": "/claim/step_{version}"}}}
    fleet.kubectl("patch", "wv", NAME, "--type=merge", "-p", json.dumps(patch))
    fleet.wait_ready(f"wv/{NAME}", seconds=60)
    applied = fleet.get(f"ifl/{NAME}")["status"]["applied"]
    assert (applied["version"], applied["source"]) == ("2", {"path": "/claim/step_2"})

    mounts = fleet.get(f"pod/{NAME}-0")["spec"]["containers"][0]["volumeMounts"]
    written = {m["mountPath"]: m.get("readOnly", False) for m in mounts}
    assert (written["/claim"], written["/node"], written["/scratch"]) == (True, True, False)
    fleet.kubectl("delete", "ifl,wv", NAME)
