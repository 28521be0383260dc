"""The InferencePool that the operator creates fits the CRD that its project has published."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.builders import make_fleet

from fleet_operator.api.serving import EndpointPickerRef
from fleet_operator.core.manifests import inference_pool as pools

CRD = yaml.safe_load((Path(__file__).parent / "recorded/inferencepools_1.0.0.yaml").read_text())
ASKED = {"inferencePool": {"endpointPickerRef": {"name": "policy-epp"}}}


def closed(node: Any) -> Any:
    """The schema, refusing fields that it does not name."""
    if isinstance(node, list):
        return [closed(n) for n in node]
    if not isinstance(node, dict):
        return node
    made = {k: closed(v) for k, v in node.items()}
    return made | ({"additionalProperties": False} if "properties" in made else {})


def schema() -> dict[str, Any]:
    (version,) = [v for v in CRD["spec"]["versions"] if v["name"] == pools.VERSION]
    spec: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


def made() -> dict[str, Any]:
    pool = pools.inference_pool(make_fleet(serving=ASKED))
    assert pool is not None
    return pool


def test_the_kind_is_the_published_one() -> None:
    named = CRD["spec"]["names"]

    assert (CRD["spec"]["group"], named["plural"]) == (pools.GROUP, pools.PLURAL)
    assert made()["apiVersion"] == f"{pools.GROUP}/{pools.VERSION}"
    assert made()["kind"] == named["kind"]


def test_the_object_fits_the_schema() -> None:
    jsonschema.validate(made()["spec"], closed(schema()))


@pytest.mark.parametrize("field", ["selector", "targetPorts", "endpointPickerRef"])
def test_an_object_without_a_field_does_not_fit(field: str) -> None:
    spec = copy.deepcopy(made()["spec"])
    del spec[field]

    with pytest.raises(jsonschema.ValidationError, match=field):
        jsonschema.validate(spec, closed(schema()))


def test_our_defaults_of_the_picker_are_values_of_theirs() -> None:
    theirs = schema()["properties"]["endpointPickerRef"]["properties"]
    ours = EndpointPickerRef(name="epp")

    assert ours.failure_mode == theirs["failureMode"]["default"]
    assert made()["spec"]["endpointPickerRef"].keys() <= theirs.keys()
