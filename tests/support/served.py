"""The OpenAPI documents of an API server with certain CRDs, for the fake API server."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from tests.support.fake_kube import FakeCluster

from fleet_operator.api.served import own_schemas

INDEX = "/openapi/v3"
KINDS = {"inferencefleets": "InferenceFleet", "weightversions": "WeightVersion"}


def schemas() -> dict[str, Any]:
    """The status schemas of this release, to be changed."""
    return copy.deepcopy({plural: dict(schema) for plural, schema in own_schemas().items()})


def closed() -> dict[str, Any]:
    """Status schemas with the fields of this release, of CRDs that keep no unknown field."""
    return {plural: _closed(schema) for plural, schema in own_schemas().items()}


def _closed(schema: Any) -> Any:
    made = {k: v for k, v in schema.items() if k != "x-kubernetes-preserve-unknown-fields"}
    if "properties" in made:
        made["properties"] = {name: _closed(inner) for name, inner in made["properties"].items()}
    if "items" in made:
        made["items"] = _closed(made["items"])
    return made


def strict(schema: Any) -> Any:
    """A schema as the API server checks a server-side apply by it: without unknown fields."""
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: strict(inner) for name, inner in made["properties"].items()}
        made["additionalProperties"] = bool(made.get("x-kubernetes-preserve-unknown-fields"))
    if "items" in made:
        made["items"] = strict(made["items"])
    return made


def serve(cluster: FakeCluster, served: dict[str, Any]) -> None:
    """Serve these status schemas from now on, and check statuses by them."""
    cluster.served = {plural: strict(schema) for plural, schema in served.items()}
    made = {
        f"dev.rlfleet.v1alpha1.{kind}": {
            "type": "object",
            "properties": {"status": served[plural]},
            "x-kubernetes-group-version-kind": [
                {"group": "rlfleet.dev", "kind": kind, "version": "v1alpha1"}
            ],
        }
        for plural, kind in KINDS.items()
    }
    text = json.dumps(made, sort_keys=True)
    path = f"{INDEX}/apis/rlfleet.dev/v1alpha1?hash={hashlib.sha256(text.encode()).hexdigest()}"
    others = {"io.k8s.Any": {"type": "object"}}
    cluster.objects[path] = {"openapi": "3.0.0", "components": {"schemas": made | others}}
    cluster.objects[INDEX] = {"paths": {"apis/rlfleet.dev/v1alpha1": {"serverRelativeURL": path}}}
