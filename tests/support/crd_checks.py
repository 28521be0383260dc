"""The checks of the API server on parts of our objects, by the schemas of the CRDs. Of their CEL rules only those of
patterns count, which are rules because a pattern has no message.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jsonschema
import yaml

CRDS = Path(__file__).parents[2] / "crds"
PLURALS = ("inferencefleets", "weightversions")
_MATCHES = re.compile(r"self\.matches\(r'(.*)'\)")


@functools.cache
def crd_schema(plural: str) -> dict[str, Any]:
    """The schema of a kind's objects."""
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = _with_patterns(version["schema"]["openAPIV3Schema"])
    return schema


def _with_patterns(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_patterns(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _with_patterns(value) for key, value in node.items()}
    for each in node.get("x-kubernetes-validations", ()):
        if "rule" in each and (found := _MATCHES.fullmatch(each["rule"])):
            made["pattern"] = found[1]
    return made


@functools.cache
def checker(plural: str, part: str) -> jsonschema.Draft202012Validator:
    """The checks on one part of a kind's objects: `spec` or `status`."""
    return jsonschema.Draft202012Validator(_plain(crd_schema(plural)["properties"][part]))


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {**node, "type": ["integer", "string"]}
    return {key: _plain(value) for key, value in node.items()}
