"""A status is fitted into the schema that the API server serves, and what is missing is named."""

from __future__ import annotations

import copy
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.crd_checks import PLURALS, crd_schema
from tests.support.served import strict
from tests.unit.api.test_unread import whole

from fleet_operator.api.served import fitting, missing_from, own_schemas
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import WeightsStatus

STATUSES = {"inferencefleets": FleetStatus, "weightversions": WeightsStatus}


def damaged(schema: Any, chance: random.Random, share: float = 0.1) -> Any:
    """A schema of an older release: without some fields, values and entries of lists."""
    made = copy.deepcopy(schema)
    if chance.random() < 0.5:
        made.pop("x-kubernetes-preserve-unknown-fields", None)
    for name in list(made.get("properties", {})):
        if chance.random() < share:
            del made["properties"][name]
            made["required"] = [n for n in made.get("required", ()) if n != name]
        else:
            made["properties"][name] = damaged(made["properties"][name], chance, share)
    if "items" in made:
        made["items"] = damaged(made["items"], chance, share)
    if "enum" in made and chance.random() < 0.5:
        made["enum"] = made["enum"][1:]
    for limit in ("maxItems", "maxLength"):
        if limit in made and chance.random() < 0.5:
            made[limit] //= 10
    if made.get("type") == "string" and chance.random() < share:
        made["pattern"] = "^[a-z]+$"
    return made


@pytest.mark.parametrize("plural", PLURALS)
def test_nothing_is_missing_from_the_schemas_of_this_release(plural: str) -> None:
    served = crd_schema(plural)["properties"]["status"]

    assert list(missing_from(served, own_schemas()[plural])) == []
    status = STATUSES[plural].read(whole(STATUSES[plural])).to_json()
    assert fitting(status, served) == status


@settings(max_examples=200, print_blob=True)
@given(seed=st.integers(0, 1 << 32), plural=st.sampled_from(PLURALS))
def test_a_status_fits_into_any_older_schema(seed: int, plural: str) -> None:
    chance = random.Random(seed)  # noqa: S311 - chance, not secrets
    served = damaged(own_schemas()[plural], chance)
    status = STATUSES[plural].read(whole(STATUSES[plural])).to_json() | {"newField": 1}

    fits = fitting(status, served)

    jsonschema.Draft202012Validator(strict(served)).validate(fits)
    assert fitting(fits, served) == fits


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        pytest.param({"properties": {}}, ["status.a", "status.list"], id="fields"),
        pytest.param(
            {"properties": {}, "x-kubernetes-preserve-unknown-fields": True}, [], id="kept fields"
        ),
        pytest.param({"required": ["z"]}, ["status (requires z)"], id="a required field"),
        pytest.param({"type": "array"}, ["status (type object)"], id="a type"),
        pytest.param(
            {"x-kubernetes-validations": [{"rule": "self.a == 'b'"}]},
            ["status (self.a == 'b')"],
            id="a rule",
        ),
    ],
)
def test_what_is_missing_is_named(change: dict[str, Any], missing: list[str]) -> None:
    own = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["b", "c"]},
            "list": {"type": "array", "maxItems": 9, "items": {"type": "string"}},
        },
    }
    assert list(missing_from({**own, **change}, own)) == missing


@pytest.mark.parametrize(
    ("own", "served", "missing"),
    [
        ({"enum": ["b", "c"]}, {"enum": ["b"]}, ["status (c)"]),
        ({}, {"enum": ["b"]}, ["status (any text)"]),
        ({"maxItems": 9}, {"maxItems": 8}, ["status (maxItems 8)"]),
        ({}, {"maxLength": 8}, ["status (maxLength 8)"]),
        ({"maxItems": 9}, {"maxItems": 10}, []),
        ({}, {"pattern": "^a$"}, ["status (pattern ^a$)"]),
        ({"items": {"enum": ["a"]}}, {"items": {"enum": []}}, ["status[] (a)"]),
    ],
)
def test_a_tighter_limit_is_named(own: Any, served: Any, missing: list[str]) -> None:
    assert list(missing_from(served, own)) == missing


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        ("Sealing", {"type": "string", "enum": ["Staging"]}, {}),
        ("text", {"type": "string", "maxLength": 2}, {"a": "te"}),
        ("text", {"type": "string", "pattern": "^[0-9]$"}, {}),
        (True, {"type": "integer"}, {}),
        (1, {"type": "boolean"}, {}),
        (1.5, {"type": "integer"}, {}),
        (1, {"type": "number"}, {"a": 1}),
        (7, {"type": "integer", "maximum": 6}, {}),
        ([1, "a", 2], {"type": "array", "items": {"type": "integer"}}, {"a": [1, 2]}),
        ({"b": 1}, {"type": "object"}, {"a": {"b": 1}}),
        ({"b": 1}, {"type": "object", "properties": {}, "required": ["c"]}, {}),
        ({"x": [None]}, {}, {"a": {"x": [None]}}),
    ],
)
def test_a_value_is_written_as_far_as_it_is_permitted(value: Any, schema: Any, fits: Any) -> None:
    assert fitting({"a": value}, {"type": "object", "properties": {"a": schema}}) == fits
