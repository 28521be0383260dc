"""The state of a cluster with a fleet that serves, recorded from one release for tests of the next.

A recording holds the CRDs of the release, without their descriptions, and every object of one fleet.
The API server's own fields, the token and the node of a pod are left out: a cluster that plays the
recording has its own.
"""

from __future__ import annotations

import base64
import copy
import json
import secrets
from typing import Any

from tests.cluster.support.admin import Json
from tests.cluster.support.workspace import GROUP, Workspace

CHILDREN = {
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "Pod": ("/api/v1", "pods"),
}
"""API and plural of what an operator creates, in the order in which it is played."""
ROOTS = {"InferenceFleet": "inferencefleets", "WeightVersion": "weightversions"}
_OWNED_BY_THE_SERVER = {
    *("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"),
}
_NAMESPACE = "NAMESPACE"


async def record(workspace: Workspace, crds: list[Json]) -> list[Json]:
    """The CRDs, the fleet, its WeightVersion and its children, ready to be written to a file."""
    found = [
        _bare(await workspace.admin.get(workspace.path(plural)) or {}) for plural in ROOTS.values()
    ]
    for kind, (root, plural) in CHILDREN.items():
        children = await workspace.objects(plural, root=root)
        found += [_child(kind, made) for made in children.values()]
    text = json.dumps(found).replace(workspace.namespace, _NAMESPACE)
    objects: list[Json] = json.loads(text)
    return [*(without_texts(crd) for crd in crds), *objects]


def without_texts(node: Any) -> Any:
    """A schema without its descriptions, which decide nothing."""
    if isinstance(node, list):
        return [without_texts(n) for n in node]
    if not isinstance(node, dict):
        return node
    return {
        k: without_texts(v)
        for k, v in node.items()
        if not (k == "description" and isinstance(v, str))
    }


def _bare(body: Json) -> Json:
    metadata = {k: v for k, v in body["metadata"].items() if k not in _OWNED_BY_THE_SERVER}
    return body | {"metadata": metadata}


def _child(kind: str, body: Json) -> Json:
    version = {"Pod": "v1", "Service": "v1", "ConfigMap": "v1", "Secret": "v1"}.get(kind)
    made = _bare(body)
    made |= {"kind": kind, "apiVersion": version or CHILDREN[kind][0].removeprefix("/apis/")}
    made.pop("status", None)
    if kind == "Secret":
        made["data"] = dict.fromkeys(made["data"], "")
    for owner in made["metadata"].get("ownerReferences", ()):
        owner["uid"] = ""
    for field in ("nodeName", "clusterIP", "clusterIPs", "serviceAccountName", "serviceAccount"):
        if not (
            field.startswith("clusterIP") and made.get("spec", {}).get(field) in ("None", ["None"])
        ):
            made.get("spec", {}).pop(field, None)
    return made


async def play(workspace: Workspace, recording: list[Json], *, manager: str) -> None:
    """Create the objects of a recording in the workspace's namespace, as the recorded operator had.

    `manager`: the field manager of the operator, which owns its children and the statuses.
    """
    text = json.dumps([o for o in recording if o["kind"] != "CustomResourceDefinition"])
    objects: list[Json] = json.loads(text.replace(_NAMESPACE, workspace.namespace))
    uids: dict[str, str] = {}
    for body in objects:
        if plural := ROOTS.get(body["kind"]):
            uids[body["kind"]] = await _play_ours(workspace, plural, body, manager)
    for body in (o for kind in CHILDREN for o in objects if o["kind"] == kind):
        made = copy.deepcopy(body)
        for owner in made["metadata"].get("ownerReferences", ()):
            owner["uid"] = uids[owner["kind"]]
        if made["kind"] == "Secret":
            token = base64.b64encode(secrets.token_urlsafe(32).encode()).decode()
            made["data"] = dict.fromkeys(made["data"], token)
        root, plural = CHILDREN[made["kind"]]
        path = f"{root}/namespaces/{workspace.namespace}/{plural}/{made['metadata']['name']}"
        await workspace.admin.apply(path, made, manager=manager)


async def _play_ours(workspace: Workspace, plural: str, body: Json, manager: str) -> str:
    """Create an object of ours, and its status about the generation that it has here."""
    status = json.loads(json.dumps(body["status"]))
    spec = {k: v for k, v in body.items() if k != "status"}
    root = f"{GROUP}/namespaces/{workspace.namespace}/{plural}"
    made = await workspace.admin.create(root, spec)
    metadata = {k: made["metadata"][k] for k in ("name", "namespace", "uid")}
    _set_everywhere(status, "observedGeneration", made["metadata"]["generation"])
    head = {k: body[k] for k in ("apiVersion", "kind")}
    path = f"{root}/{metadata['name']}/status"
    await workspace.admin.apply(
        path, head | {"metadata": metadata, "status": status}, manager=manager
    )
    return str(metadata["uid"])


def _set_everywhere(node: Any, key: str, value: Any) -> None:
    if isinstance(node, list):
        for each in node:
            _set_everywhere(each, key, value)
    elif isinstance(node, dict):
        if key in node:
            node[key] = value
        for each in node.values():
            _set_everywhere(each, key, value)
