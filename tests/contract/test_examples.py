"""The manifests of `examples` fit the CRDs and the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.contract.test_documents import strict_schema

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = {"InferenceFleet": FleetSpec, "WeightVersion": WeightsSpec}
MANIFESTS = sorted(EXAMPLES.glob("*/fleet.yaml"))


def test_each_folder_has_a_manifest_and_a_page_and_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text()
    folders = {f.name for f in EXAMPLES.iterdir() if f.is_dir()}

    assert {m.parent.name for m in MANIFESTS} == folders - {"argocd", "flux"}
    assert all((m.parent / "README.md").exists() for m in MANIFESTS)
    assert {name for name in folders if f"]({name}" not in page} == set()


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_a_manifest_fits_the_crds_and_the_models(manifest: Path) -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(manifest.read_text()))

    assert documents[0]["kind"] == "InferenceFleet"
    for document in documents:
        jsonschema.validate(document["spec"], strict_schema(document["kind"]))
        MODELS[document["kind"]].model_validate(document["spec"])
