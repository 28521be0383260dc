"""The documents name only things that exist: links, files, make targets, chart values, and samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.documents import BLOCK, DOCUMENTS, samples
from tests.support.programs import written_by

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec

ROOT = Path(__file__).parents[2]
FOLDERS = "charts|crds|docs|examples|operator|requirements|tests|tools|worker"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
TARGET = re.compile(r"^(?:\$ *)?make ((?:[a-z][a-z-]* ?)+)")
SETTING = re.compile(r"--set[ =]((?:[\w.]+=[^\s\\`]*,?)+)")
PLACE = re.compile(rf"(?:{FOLDERS})/[\w./-]*")


def wrong(found: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """Document → what is wrong in it, without the others."""
    each = {d.relative_to(ROOT).as_posix(): list(found(d)) for d in DOCUMENTS}
    return {document: names for document, names in each.items() if names}


def code(document: Path) -> Iterator[str]:
    """Every line of a block and every span."""
    text = document.read_text()
    for _, block in BLOCK.findall(text):
        yield from block.splitlines()
    yield from SPAN.findall(BLOCK.sub("", text))


def anchors(document: Path) -> set[str]:
    """Names of headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def missing_links(document: Path) -> Iterator[str]:
    for link in LINK.findall(BLOCK.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def targets() -> set[str]:
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {name for names in phony for name in names.split()}


def unknown_targets(lines: Iterator[str], known: set[str]) -> Iterator[str]:
    for line in lines:
        if found := TARGET.match(line):
            yield from set(found[1].split()) - known


def unknown_values(lines: Iterator[str], values: dict[str, Any]) -> Iterator[str]:
    for line in lines:
        for pairs in SETTING.findall(line):
            for pair in filter(None, pairs.split(",")):
                node: Any = values
                for key in pair.partition("=")[0].split("."):
                    node = node.get(key) if isinstance(node, dict) else None
                if node is None:
                    yield pair


def test_links_lead_somewhere() -> None:
    assert wrong(missing_links) == {}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("# A heading\n[a](#a-heading) [b](#gone) [c](gone.md) [d](page.md#gone)\n")

    assert list(missing_links(document)) == ["#gone", "gone.md", "page.md#gone"]


def test_files_that_are_named_exist() -> None:
    def missing(document: Path) -> set[str]:
        named = {span for span in SPAN.findall(document.read_text()) if PLACE.fullmatch(span)}
        return {name for name in named if not (ROOT / name).exists()}

    assert wrong(missing) == {}


def test_make_targets_that_are_named_exist() -> None:
    known = targets()

    assert wrong(lambda document: unknown_targets(code(document), known)) == {}


def test_the_readme_is_a_front_page() -> None:
    page = (ROOT / "README.md").read_text()

    assert len(page.splitlines()) < 150
    assert len(page) <= 8000


def test_an_unknown_target_is_found() -> None:
    known = targets()

    assert {"demo", "test", "images", "clean-cache"} <= known
    assert set(unknown_targets(iter(["make demo nonsense", "make it so"]), known)) >= {"nonsense"}


def test_every_make_target_is_in_its_help() -> None:
    assert targets() - set(written_by(["make", "help"], cwd=ROOT).split()) == set()


def test_chart_values_that_are_set_exist() -> None:
    values = yaml.safe_load((ROOT / "charts/rlfleet/values.yaml").read_text())

    def unknown(document: Path) -> Iterator[str]:
        whole = document.read_text().replace("\\\n", " ").splitlines()
        return unknown_values(iter(whole), values)

    assert wrong(unknown) == {}


def test_an_unknown_chart_value_is_found() -> None:
    line = "helm install --set image.tag=x,image.tagg=y --set gone=z"

    assert list(unknown_values(iter([line]), {"image": {"tag": ""}})) == ["image.tagg=y", "gone=z"]


def strict_schema(kind: str) -> dict[str, Any]:
    """The CRD's schema, refusing fields that it does not name."""
    plural = {"InferenceFleet": "inferencefleets", "WeightVersion": "weightversions"}[kind]
    crd = yaml.safe_load((ROOT / f"crds/{plural}.yaml").read_text())
    (version,) = crd["spec"]["versions"]

    def closed(node: Any) -> Any:
        if isinstance(node, list):
            return [closed(n) for n in node]
        if not isinstance(node, dict):
            return node
        node = {k: closed(v) for k, v in node.items()}
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        return node

    return closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


@pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in samples()])
def test_a_documented_sample_fits_the_crd_and_the_model(sample: dict[str, Any]) -> None:
    jsonschema.validate(sample["spec"], strict_schema(sample["kind"]))
    model = {"InferenceFleet": FleetSpec, "WeightVersion": WeightsSpec}[sample["kind"]]
    model.model_validate(sample["spec"])


def test_a_sample_with_an_unknown_field_does_not_fit() -> None:
    spec = {"fleetRef": {"name": "f"}, "version": "1", "source": {"path": "/w"}, "colour": "red"}

    with pytest.raises(jsonschema.ValidationError, match="colour"):
        jsonschema.validate(spec, strict_schema("WeightVersion"))


def test_test_files_that_are_named_exist() -> None:
    there = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    named = re.compile(r"`(?:tests/[a-z_/]+/)?(test_\w+\.py)`")

    assert wrong(lambda document: set(named.findall(document.read_text())) - there) == {}
