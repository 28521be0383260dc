"""Each field that a spec can have is in at least one valid sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = Path(__file__).parents[2] / "crds"
SAMPLES = [
    document
    for file in sorted((CRDS / "samples" / "valid").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
KINDS = {"InferenceFleet": "inferencefleets.yaml", "WeightVersion": "weightversions.yaml"}
ITEM = "[]"


def leaves(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths of the fields of a schema that have no fields of their own."""
    if properties := schema.get("properties"):
        for name, field in properties.items():
            yield from leaves(field, f"{path}.{name}")
    elif "items" in schema:
        yield from leaves(schema["items"], path + ITEM)
    else:
        yield path


def paths(value: Any, path: str) -> Iterator[str]:
    """Paths of everything in an object."""
    yield path
    if isinstance(value, dict):
        for name, field in value.items():
            yield from paths(field, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, path + ITEM)


def spec_of(kind: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / KINDS[kind]).read_text())
    (version,) = crd["spec"]["versions"]
    spec: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


def test_the_leaves_are_found() -> None:
    schema = {
        "properties": {
            "a": {"type": "string"},
            "b": {"items": {"properties": {"c": {}, "d": {"items": {"type": "string"}}}}},
            "e": {"additionalProperties": {"type": "string"}},
        }
    }

    assert list(leaves(schema, "spec")) == ["spec.a", "spec.b[].c", "spec.b[].d[]", "spec.e"]
    assert set(paths({"b": [{"c": 1}]}, "spec")) == {
        *("spec", "spec.b", "spec.b[]", "spec.b[].c"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_a_spec_is_in_a_valid_sample(kind: str) -> None:
    shown = {
        path
        for sample in SAMPLES
        if sample["kind"] == kind
        for path in paths(sample["spec"], "spec")
    }

    assert sorted(set(leaves(spec_of(kind), "spec")) - shown) == []
