"""The API server bounds the fields of a spec, so few specs are too large to be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.crd_checks import PLURALS, crd_schema

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
