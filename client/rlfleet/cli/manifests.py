"""Reads manifests from files, directories and the input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import fail
from rlfleet.cli.validation import Manifest
from rlfleet.ports import Json


class _Loader(yaml.SafeLoader):
    """Has no dates: a version that looks like one is text, as kubectl reads it."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(files: list[str], namespace: str) -> tuple[list[Manifest], list[Check]]:
    """The objects of the files, and files that cannot be read."""
    manifests, problems = [], []
    for file in _expanded(files):
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text()
            for body in _objects(list(yaml.load_all(text, _Loader))):
                own = (body.get("metadata") or {}).get("namespace") or namespace
                manifests.append(Manifest(file, body, own))
        except OSError as error:
            problems.append(fail(file, str(error.strerror), "name a file that can be read"))
        except (ValueError, yaml.YAMLError, TypeError) as error:
            problems.append(fail(file, " ".join(str(error).split()), "correct the file"))
    return manifests, problems


def _expanded(files: list[str]) -> Iterator[str]:
    for file in files:
        if Path(file).is_dir():
            yield from sorted(
                str(f) for f in Path(file).iterdir() if f.suffix in {".yaml", ".yml", ".json"}
            )
        else:
            yield file


def _objects(documents: list[Any]) -> Iterator[Json]:
    """The objects of YAML documents, with those of a `List`. Errors: TypeError."""
    for body in documents:
        if body is None:
            continue
        if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
            raise TypeError(f"a document is not an object: {str(body)[:40]!r}")
        meta = body.get("metadata") or {}
        for field in ("name", "namespace"):
            if not isinstance(meta.get(field) or "", str):
                raise TypeError(f"metadata.{field} is not text: {str(meta[field])[:40]!r}")
        if body.get("kind") == "List":
            items = body.get("items") or []
            if not isinstance(items, list):
                raise TypeError(f"the items of a List are not a list: {str(items)[:40]!r}")
            yield from _objects(items)
        else:
            yield body
