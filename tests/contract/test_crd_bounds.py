"""The API server bounds the fields of a spec, so few specs are too large to be kept.

No bound is in a CRD alone, where a slip would change it unseen. It is the model's too, or in a table here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.test_crd_equals_models import BOUNDS, PAIRS, model_schema
from tests.support.crd_checks import PLURALS, crd_schema

from rlfleet_resources.conditions import MAX_MESSAGE_CHARACTERS
from rlfleet_resources.fleet_status import (
    MAX_DROPPED_RUNS,
    MAX_LAGGARDS,
    MAX_PINNED,
    MAX_PINNED_ADAPTERS,
    MAX_RECYCLED,
    MAX_SOURCES_IN_USE,
    MAX_VERSIONS,
)
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import MAX_CANARY_PODS, MAX_HISTORY

FREE = {
    "spec.podOverlay",
    "spec.pod.affinity.nodeAffinity",
    "spec.pod.affinity.podAffinity",
    "spec.pod.affinity.podAntiAffinity",
}
"""Fields of free form: no keyword bounds what is inside, and CEL does not see it."""
_BOUND_OF = {"array": "maxItems", "string": "maxLength"}


def unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The fields that may have any size. A pattern without a repetition bounds a text, too."""
    kind = "string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
    pattern = schema.get("pattern", "+")
    is_fixed = not set("*+") & set(pattern.replace(r"\+", ""))
    bound = _BOUND_OF.get(str(kind), "")
    if (
        bound
        and bound not in schema
        and "enum" not in schema
        and not (bound == "maxLength" and is_fixed)
    ):
        yield path
    if kind == "object" and "properties" not in schema and "maxProperties" not in schema:
        yield path
    for name, child in schema.get("properties", {}).items():
        yield from unbounded(child, f"{path}.{name}")
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(word), dict):
            yield from unbounded(schema[word], path + mark)


def free(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The fields of free form."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield path
    for name, child in schema.get("properties", {}).items():
        yield from free(child, f"{path}.{name}")
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(word), dict):
            yield from free(schema[word], path + mark)


@pytest.mark.parametrize("plural", PLURALS)
def test_every_list_map_and_text_of_a_spec_has_a_bound(plural: str) -> None:
    assert list(unbounded(crd_schema(plural)["properties"]["spec"], "spec")) == []


@pytest.mark.parametrize("plural", PLURALS)
def test_few_fields_have_a_free_form(plural: str) -> None:
    found = set(free(crd_schema(plural)["properties"]["spec"], "spec"))

    assert found == (FREE if plural == "inferencefleets" else set())


def bounds_in(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Path → the bounds of a field. Items of lists are `[]`, values of maps `{}`."""
    words = (*BOUNDS, "minProperties", "maxProperties")
    found = {path: {k: schema[k] for k in words if k in schema}}
    if "const" in schema:
        found[path]["enum"] = [schema["const"]]
    for name, child in schema.get("properties", {}).items():
        found |= bounds_in(child, f"{path}.{name}")
    for word, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(word), dict):
            found |= bounds_in(schema[word], path + mark)
    return found


NAME = {"minLength": 1, "maxLength": 253}
"""A DNS subdomain: of an object, a key in it, a driver, a host. Source: Kubernetes, Object Names and IDs."""
LABEL_KEY = {"minLength": 1, "maxLength": 253 + 1 + 63}
"""A DNS subdomain, a slash and a name. Source: Kubernetes, Labels and Selectors."""
LABEL = {"maxLength": 63}
"""A label's value, a DNS label, a word of an API. Source: Kubernetes, Labels and Selectors."""
QUANTITY = {
    "maxLength": 64,
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
}
"""Source: Kubernetes, the schema of `resource.Quantity`."""
TEXT = {"maxLength": 4096}
PATH = {"minLength": 1, "maxLength": 1024, "pattern": "^/"}
VARIABLE = {"maxLength": 200, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
MANY = {"maxProperties": 50}
COPIED: dict[str, dict[str, Any]] = {
    # Fields that the operator only copies, by the end of their path. The longest end counts. The words are those of
    # Kubernetes. Its own bounds, where they are numbers, are in these, and the others keep a spec small.
    "configMapKeyRef.name": NAME,
    "configMapKeyRef.key": NAME,
    "secretKeyRef.name": NAME,
    "secretKeyRef.key": NAME,
    "configMapRef.name": NAME,
    "secretRef.name": NAME,
    "resourceFieldRef.resource": NAME,
    "imagePullSecrets[].name": NAME,
    "resourceClaimName": NAME,
    "resourceClaimTemplateName": NAME,
    "claimName": NAME,
    "nfs.server": NAME,
    "csi.driver": NAME,
    "nodePublishSecretRef.name": NAME,
    "dataSourceRef.name": NAME,
    "loadBalancerClass": NAME,
    "storageClassName": {"maxLength": 253},
    "volumeAttributesClassName": {"maxLength": 253},
    "dataSourceRef.apiGroup": {"maxLength": 253},
    "tolerations[].key": LABEL_KEY,
    "topologyKey": LABEL_KEY,
    "matchLabelKeys[]": LABEL_KEY,
    "matchExpressions[].key": LABEL_KEY,
    "nodeSelector{}": LABEL,
    "tolerations[].value": LABEL,
    "matchLabels{}": LABEL,
    "matchExpressions[].values[]": LABEL,
    "labels{}": LABEL,
    "fieldRef.apiVersion": LABEL,
    "containerName": LABEL,
    "csi.fsType": LABEL,
    "resources.claims[].name": LABEL | {"minLength": 1},
    "resources.claims[].request": LABEL | {"minLength": 1},
    "dataSourceRef.kind": LABEL | {"minLength": 1},
    "resourceClaims[].name": LABEL | {"minLength": 1, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    "trafficDistribution": LABEL | {"minLength": 1, "pattern": "^[A-Z][A-Za-z]*$"},
    "divisor": QUANTITY,
    "limits{}": QUANTITY,
    "requests{}": QUANTITY,
    "emptyDir.sizeLimit": QUANTITY,
    "env[].value": TEXT,
    "volumeAttributes{}": TEXT,
    "annotations{}": TEXT,
    "nfs.path": PATH,
    "hostPath.path": PATH,
    "env[].name": VARIABLE | {"minLength": 1},
    "envFrom[].prefix": VARIABLE,
    "fieldRef.fieldPath": {"minLength": 1, "maxLength": 300},
    "image.reference": {"minLength": 1, "maxLength": 500},
    "loadBalancerSourceRanges[]": {"minLength": 1, "maxLength": 50},
    "nodeSelector": MANY,
    "matchLabels": MANY,
    "labels": MANY,
    "annotations": MANY,
    "volumeAttributes": MANY,
    "limits": {"maxProperties": 30},
    "requests": {"maxProperties": 30},
    "volumeClaimTemplate.spec.resources.requests": {"minProperties": 1, "maxProperties": 5},
    "nodeAffinity": {"maxProperties": 10},
    "podAffinity": {"maxProperties": 10},
    "podAntiAffinity": {"maxProperties": 10},
    "podOverlay": {"maxProperties": 10},
    "matchLabelKeys": {"maxItems": 20},
    "matchExpressions": {"maxItems": 50},
    "matchExpressions[].values": {"maxItems": 50},
    "loadBalancerSourceRanges": {"maxItems": 50},
    "accessModes": {"minItems": 1, "maxItems": 4},
    "maxSkew": {"minimum": 1, "maximum": 10_000},
    "minDomains": {"minimum": 1, "maximum": 10_000},
    "tolerationSeconds": {"minimum": 0, "maximum": 365 * 86_400},
    "sessionAffinityTimeoutSeconds": {"minimum": 1, "maximum": 86_400},
    "tolerations[].operator": {"enum": ["Exists", "Equal"]},
    "tolerations[].effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    "whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    "nodeAffinityPolicy": {"enum": ["Honor", "Ignore"]},
    "nodeTaintsPolicy": {"enum": ["Honor", "Ignore"]},
    "matchExpressions[].operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    "hostPath.type": {"enum": ["Directory", "DirectoryOrCreate"]},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "accessModes[]": {
        "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]
    },
    "emptyDir.medium": {"enum": ["Memory"]},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "externalTrafficPolicy": {"enum": ["Cluster", "Local"]},
    "internalTrafficPolicy": {"enum": ["Cluster", "Local"]},
    "sessionAffinity": {"enum": ["None", "ClientIP"]},
}


def copied_as(path: str) -> str | None:
    """The entry of `COPIED` for a field; None without one."""
    found = [end for end in COPIED if path.endswith(f".{end}")]
    return max(found, key=len, default=None)


def test_each_bound_of_a_spec_is_that_of_the_model_or_of_what_is_copied():
    used = set()
    for plural, part, model in (p.values for p in PAIRS if p.values[1] == "spec"):
        crd, models = (
            bounds_in(crd_schema(plural)["properties"][part]),
            bounds_in(model_schema(model)),
        )
        ends = {path: copied_as(path) for path in crd}
        used |= set(ends.values())
        expected = {p: COPIED[end] if end else models.get(p, {}) for p, end in ends.items()}
        assert crd == expected
    assert COPIED.keys() - used == set()


WORD, MESSAGE = {"maxLength": 64}, {"maxLength": MAX_MESSAGE_CHARACTERS}
MANAGER = {"maxLength": 128}
"""Of a field. Source: Kubernetes, `metadata.managedFields`."""
CONDITIONS: dict[str, dict[str, Any]] = {
    ".conditions": {"maxItems": 10},
    ".conditions[].type": WORD,
    ".conditions[].status": {"enum": ["True", "False", "Unknown"]},
    ".conditions[].reason": WORD,
    ".conditions[].message": MESSAGE,
}
OF_STATUS = {
    "inferencefleets": CONDITIONS
    | {
        ".versions": {"maxItems": MAX_VERSIONS},
        ".sourcesInUse": {"maxItems": MAX_SOURCES_IN_USE},
        ".pinned": {"maxItems": MAX_PINNED},
        ".pinnedAdapters": {"maxItems": MAX_PINNED_ADAPTERS},
        ".droppedPins.runs": {"maxItems": MAX_DROPPED_RUNS},
        ".droppedPins.runs[].upTo": {"minimum": 0},
        ".droppedPins.names": {"maxLength": 8192, "pattern": "^[0-9a-f]*$"},
        ".laggards": {"maxItems": MAX_LAGGARDS},
        ".recycled": {"maxItems": MAX_RECYCLED},
    },
    "weightversions": CONDITIONS
    | {
        ".requestedBy": MANAGER,
        ".laggards": {"maxItems": MAX_LAGGARDS},
        ".canary.pods": {"maxItems": MAX_CANARY_PODS},
        ".canaries": {"maxItems": MAX_CANARY_PODS},
        ".history": {"maxItems": MAX_HISTORY},
        ".history[].reason": WORD,
        ".history[].message": MESSAGE,
        ".history[].requestedBy": MANAGER,
    },
}


@pytest.mark.parametrize("plural", PLURALS)
def test_each_bound_of_a_status_is_one_that_the_operator_keeps(plural):
    bounds = bounds_in(crd_schema(plural)["properties"]["status"])

    assert {path: found for path, found in bounds.items() if found} == OF_STATUS[plural]
    assert len(ConditionType) <= CONDITIONS[".conditions"]["maxItems"]
