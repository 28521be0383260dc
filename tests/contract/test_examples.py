"""The manifests of `examples` fit the CRDs and the models."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.contract.test_documents import strict_schema
from tests.support.documents import samples

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec
from rlfleet_resources import names

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MODELS = {"InferenceFleet": FleetSpec, "WeightVersion": WeightsSpec}
MANIFESTS = sorted(EXAMPLES.glob("*/fleet.yaml"))


def test_each_folder_has_a_manifest_and_a_page_and_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text()
    folders = {f.name for f in EXAMPLES.iterdir() if f.is_dir()}

    assert {m.parent.name for m in MANIFESTS} == folders - {"argocd", "flux", "tenant"}
    assert {name for name in folders if not (EXAMPLES / name / "README.md").exists()} == set()
    assert {name for name in folders if f"]({name}" not in page} == set()


@pytest.mark.parametrize("page", sorted(EXAMPLES.glob("*/README.md")), ids=lambda p: p.parent.name)
def test_a_page_names_the_tests_that_run_it_or_says_that_it_was_not_run(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)

    assert named or re.search(r"not run|do not run|No driver was run", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("file", ["values.yaml", "values-object-store.yaml"])
def test_the_collectors_values_fit_the_chart(file: str) -> None:
    schema = json.loads((ROOT / "charts/rlfleet/values.schema.json").read_text())
    values = yaml.safe_load((EXAMPLES / "retention" / file).read_text())

    jsonschema.validate(values, schema)
    assert values["collectors"]


def test_the_quota_of_a_tenant_counts_our_resources() -> None:
    documents = yaml.safe_load_all((EXAMPLES / "tenant/namespace.yaml").read_text())
    made = {document["kind"]: document for document in documents}
    counted = {
        f"count/{plural}.{names.GROUP}" for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL)
    }

    assert set(made) == {"Namespace", "ResourceQuota", "LimitRange"}
    assert counted <= set(made["ResourceQuota"]["spec"]["hard"])
    # A quota of requests refuses pods without them.
    asked = {k.removeprefix("requests.") for k in made["ResourceQuota"]["spec"]["hard"]}
    (limit,) = made["LimitRange"]["spec"]["limits"]
    assert set(limit["defaultRequest"]) == asked & {"cpu", "memory"}


@pytest.mark.parametrize(
    "manifest",
    [*MANIFESTS, EXAMPLES / "flux/weightversion.yaml"],
    ids=lambda path: path.parent.name,
)
def test_a_manifest_fits_the_crds_and_the_models(manifest: Path) -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(manifest.read_text()))

    for document in documents:
        jsonschema.validate(document["spec"], strict_schema(document["kind"]))
        MODELS[document["kind"]].model_validate(document["spec"])


def followed() -> Iterator[tuple[str, dict[str, Any]]]:
    """WeightVersions that change: of the examples, and those whose source follows the version.

    The second kind is in every manifest and page for users.
    """
    shown = list(samples())
    for folder in ("examples", "crds/samples/valid"):
        for file in sorted((ROOT / folder).rglob("*.yaml")):
            documents = yaml.safe_load_all(file.read_text())
            shown += [(f"{file.relative_to(ROOT)}", document) for document in documents]
    for name, document in shown:
        shows_none = "without-a-run" in name
        if (
            document.get("kind") == "WeightVersion"
            and (name.startswith("examples/") or "{version}" in str(document["spec"]))
            and not shows_none
        ):
            yield name, document


def test_a_manifest_whose_version_a_patch_changes_names_its_run() -> None:
    """Weights without a run are guarded, too, but no other training can follow them."""
    found = list(followed())

    assert len(found) >= 20
    assert [name for name, document in found if "runID" not in document["spec"]] == []


@pytest.mark.parametrize(
    "program", sorted(EXAMPLES.rglob("*.py")), ids=lambda p: p.relative_to(EXAMPLES).as_posix()
)
def test_a_program_that_names_a_directory_names_its_run(program: Path) -> None:
    calls = [
        {keyword.arg for keyword in node.keywords}
        for node in ast.walk(ast.parse(program.read_text()))
        if isinstance(node, ast.Call)
        # The callback publish_every finds the run of its directory by itself.
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in {"publish", "publish_every"}
    ]

    assert calls
    assert all("run_id" in given for given in calls if "path" in given)
