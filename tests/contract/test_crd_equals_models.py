"""The CRDs are the public form, the pydantic models what the operator reads: one must not say what
the other does not. `test_crd_bounds.py` compares their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.support.crd_checks import CRDS, PLURALS, crd_schema

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec
from fleet_worker.protocol import OWNED_ENGINE_FLAGS
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import WeightsStatus

BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern", "enum")
KEYWORDS = {
    *BOUNDS,
    *("type", "description", "format", "nullable", "default", "required", "oneOf", "anyOf", "not"),
    *("properties", "items", "additionalProperties", "minProperties", "maxProperties"),
}
"""Keywords of a schema besides Kubernetes' own, which begin with `x-kubernetes-`."""
PAIRS = [
    pytest.param("inferencefleets", "spec", FleetSpec, id="fleet spec"),
    pytest.param("inferencefleets", "status", FleetStatus, id="fleet status"),
    pytest.param("weightversions", "spec", WeightsSpec, id="weights spec"),
    pytest.param("weightversions", "status", WeightsStatus, id="weights status"),
]


def keywords(schema: Any) -> set[str]:
    """All keywords of a schema and of those inside it."""
    if not isinstance(schema, dict):
        return set()
    inner = [*schema.get("properties", {}).values()]
    inner += [schema[word] for word in ("items", "additionalProperties", "not") if word in schema]
    inner += [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return set(schema).union(*map(keywords, inner))


@pytest.mark.parametrize("plural", PLURALS)
def test_a_schema_has_only_keywords_of_schemas(plural):
    """A description with a comma, without quotes and in braces, ends at the comma: the API server
    refuses what is left of it."""
    found = {k for k in keywords(crd_schema(plural)) if not k.startswith("x-kubernetes-")}
    assert found <= KEYWORDS, found - KEYWORDS


def model_schema(model) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(n) for n in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[1]]
            return resolve({**target, **{k: v for k, v in node.items() if k != "$ref"}})
        if "anyOf" in node:
            kept = [n for n in node["anyOf"] if n.get("type") != "null"]
            if len(kept) == 1:
                return resolve({**kept[0], **{k: v for k, v in node.items() if k != "anyOf"}})
            # A number or a text: a structural schema has the bounds of both side by side.
            bounds = {k: v for n in kept for k, v in n.items() if k in BOUNDS}
            return {**node, **bounds}
        return {k: resolve(v) for k, v in node.items()}

    return resolve(schema)


def leaves(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Path → what a field allows. Lists are entered as `[]`, maps as `{}`."""
    found = {path: {k: schema[k] for k in BOUNDS if k in schema}}
    if "const" in schema:
        found[path]["enum"] = [schema["const"]]
    found[path]["type"] = schema.get("type")
    for name, child in schema.get("properties", {}).items():
        found |= leaves(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        found |= leaves(schema["items"], f"{path}[]")
    return found


def modelled(schema: dict[str, Any], free: set[str], path: str = "") -> dict[str, Any]:
    """A schema of a CRD without what is inside the fields that the operator only copies."""
    if path in free:
        return {k: schema[k] for k in schema if k in {"type", *BOUNDS}}
    made = dict(schema)
    if "properties" in schema:
        children = schema["properties"].items()
        made["properties"] = {n: modelled(c, free, f"{path}.{n}") for n, c in children}
    if isinstance(schema.get("items"), dict):
        made["items"] = modelled(schema["items"], free, f"{path}[]")
    return made


def free_fields(schema: dict[str, Any], path: str = "") -> set[str]:
    """The fields of a model that may be any map."""
    found = {path} if schema.get("additionalProperties") is True else set()
    for name, child in schema.get("properties", {}).items():
        found |= free_fields(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        found |= free_fields(schema["items"], f"{path}[]")
    return found


def both(plural: str, part: str, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the CRD, as far as the model has fields for it, and that of the model."""
    of_model = model_schema(model)
    of_crd = crd_schema(plural)["properties"][part]
    return modelled(of_crd, free_fields(of_model)), of_model


def required(schema: dict[str, Any], path: str = "") -> set[str]:
    found = {f"{path}.{name}" for name in schema.get("required", ())}
    for name, child in schema.get("properties", {}).items():
        found |= required(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        found |= required(schema["items"], f"{path}[]")
    return found


def always_there(schema: dict[str, Any], path: str = "") -> set[str]:
    """The fields that a model always writes: required ones, and those with a default that is not null."""
    fields = schema.get("properties", {}).items()
    found = {f"{path}.{n}" for n in schema.get("required", ())}
    found |= {f"{path}.{n}" for n, child in fields if child.get("default") is not None}
    for name, child in fields:
        found |= always_there(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        found |= always_there(schema["items"], f"{path}[]")
    return found


@pytest.mark.parametrize(("plural", "part", "model"), PAIRS)
def test_the_same_fields_exist_with_the_same_types(plural, part, model):
    crd, models = map(leaves, both(plural, part, model))

    assert {p: f["type"] for p, f in crd.items()} == {p: f["type"] for p, f in models.items()}


@pytest.mark.parametrize(("plural", "part", "model"), [p for p in PAIRS if "spec" in p.id])
def test_the_same_fields_are_required(plural, part, model):
    crd, models = map(required, both(plural, part, model))

    assert crd == models


@pytest.mark.parametrize(("plural", "part", "model"), [p for p in PAIRS if "status" in p.id])
def test_no_field_of_a_status_is_required_that_the_operator_may_leave_out(plural, part, model):
    crd = required(crd_schema(plural)["properties"][part])

    assert crd - always_there(model_schema(model)) == set()


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """The value as the API server stores it."""
    if schema.get("type") == "object" and isinstance(value, dict):
        filled = dict(value)
        for name, child in schema.get("properties", {}).items():
            if name not in filled and "default" in child:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = with_defaults(child, filled[name])
        return filled
    if schema.get("type") == "array":
        return [with_defaults(schema["items"], item) for item in value]
    return value


@pytest.mark.parametrize(
    "sample", sorted((CRDS / "samples/valid").glob("*.yaml")), ids=lambda p: p.stem
)
def test_both_fill_in_the_same_defaults(sample):
    for document in yaml.safe_load_all(sample.read_text()):
        plural, model = {
            "InferenceFleet": ("inferencefleets", FleetSpec),
            "WeightVersion": ("weightversions", WeightsSpec),
        }[document["kind"]]
        server = with_defaults(crd_schema(plural)["properties"]["spec"], document["spec"])

        assert model.model_validate(document["spec"]).to_json() == server


@pytest.mark.parametrize("plural", PLURALS)
def test_every_field_has_a_description(plural):
    def missing(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if "description" in schema else [path]
        for name, child in schema.get("properties", {}).items():
            found += missing(child, f"{path}.{name}")
        return found

    schema = crd_schema(plural)["properties"]

    assert missing(schema["spec"], "spec") + missing(schema["status"], "status") == []


def test_every_flag_that_the_worker_owns_is_refused_by_the_crd():
    args = crd_schema("inferencefleets")["properties"]["spec"]["properties"]["engine"]["properties"]
    (validation,) = args["args"]["items"]["x-kubernetes-validations"]
    rule = validation["rule"]

    for owned in OWNED_ENGINE_FLAGS:
        if owned.family:
            assert f"startsWith('{owned.flag}')" in rule
        else:
            assert f"'{owned.flag}'" in rule
        if owned.short:
            assert f"'{owned.short}'" in rule


def test_no_condition_word_is_longer_than_the_crd_allows():
    assert all(len(word) <= 64 for word in (*ConditionType, *ConditionReason))


def objects_in(schema: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    """The objects of a schema by path."""
    found = {path: schema} if schema.get("type") == "object" else {}
    for name, child in schema.get("properties", {}).items():
        found |= objects_in(child, f"{path}.{name}")
    if "items" in schema:
        found |= objects_in(schema["items"], f"{path}[]")
    return found


@pytest.mark.parametrize("plural", PLURALS)
def test_a_status_keeps_what_a_newer_release_writes_into_it(plural):
    """Else the API server would prune or refuse it after a rollback of CRDs and operator."""
    status = crd_schema(plural)["properties"]["status"]
    objects = objects_in(status, "status")
    conditions = "status.conditions[]"

    assert [
        p for p, s in objects.items() if not s.get("x-kubernetes-preserve-unknown-fields")
    ] == []
    assert [p for p, s in objects.items() if "required" in s] == [conditions]
    words = {path for path, bounds in leaves(status, "status").items() if "enum" in bounds}
    assert words == {f"{conditions}.status"}
