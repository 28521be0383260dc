"""`rlfleet validate`: would the cluster and the operator take these manifests?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from rlfleet.cli import checklist, cluster
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Check, Result
from rlfleet.cli.diagnosis import fail
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.cli.validation import (
    FLEET,
    WEIGHTS,
    Finding,
    Manifest,
    failed,
    finding,
    findings,
    flag_findings,
)
from rlfleet.errors import Forbidden, NotFound, Refused, RlfleetError, Unavailable
from rlfleet.ports import Json, Kind
from rlfleet.resources import API_VERSION, GROUP


class _Loader(yaml.SafeLoader):
    """Dates stay text, as kubectl reads them: a version may look like one."""


_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_KINDS = {FLEET: Kind.FLEETS, WEIGHTS: Kind.WEIGHTS}
_CORRECT = "correct the field that the message names"
_DRY_RUN = {
    "dryRun": "All",
    "fieldManager": cluster.FIELD_MANAGER,
    "fieldValidation": "Strict",
    "force": "true",
}
"""Nothing is stored: fields of other managers are taken only for the duration of the check."""


def validate(
    files: Annotated[
        list[str],
        typer.Argument(help="Manifests, directories of manifests, or - for standard input."),
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Check manifests against the cluster and against each other; nothing is changed."""
    api = cluster.connect(namespace, context, kubeconfig)
    manifests, found = _read(files, api.namespace)
    ours = [m for m in manifests if str(m.body.get("apiVersion")).startswith(f"{GROUP}/")]
    if not ours and not found:
        raise NotFound(
            f"there is no object of {API_VERSION} in {', '.join(files)}; name other files"
        )
    refused = list(_dry_runs(api, ours))
    failed_objects = {one.object for one in refused if one.result is Result.FAIL}
    broken = [*refused, *findings(ours, _there(api, ours), failed_objects)]
    fine = [
        finding(Result.OK, one, "the cluster takes it")
        for one in ours
        if all((b.file, b.object) != (one.file, str(one)) for b in broken)
    ]
    checklist.report([*found, *fine, *broken, *flag_findings(ours)], output)


def _read(files: list[str], namespace: str) -> tuple[list[Manifest], list[Check]]:
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
        except (UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
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


def _dry_runs(api: Api, manifests: list[Manifest]) -> Iterator[Finding]:
    """The refusals of the API server."""
    for one in manifests:
        namespace, name = one.key
        if one.body.get("apiVersion") != API_VERSION:
            message = f"the cluster serves no {one.body.get('apiVersion')}"
            yield failed(one, "NotFound", message, f"set apiVersion: {API_VERSION}")
            continue
        plural = _KINDS.get(one.kind)
        if plural is None or not name:
            message = "the kind is unknown" if plural is None else "metadata.name is missing"
            yield failed(one, "Invalid", message, "correct the file")
            continue
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}/{name}"
        body = one.body | {"metadata": one.body["metadata"] | {"namespace": namespace}}
        try:
            api.call("PATCH", path, _DRY_RUN, body, media="apply-patch+yaml")
        except Unavailable as error:
            # The API server answers an unknown field or a wrong type with 500 for an apply.
            if "typed patch object" not in str(error):
                raise
            _, _, message = str(error).rpartition("): ")
            yield failed(one, "BadRequest", message, _CORRECT)
        except Forbidden as error:
            message, _, remedy = str(error).partition("; ")
            note = f"the API server has not checked it: {message}"
            yield finding(Result.WARN, one, note, rule="Forbidden", remedy=remedy)
        except NotFound as error:
            remedy = f"create namespace {namespace!r}, or see rlfleet doctor"
            yield failed(one, "NotFound", str(error).partition("; ")[0], remedy)
        except Refused as error:
            yield failed(one, error.reason, error.message, _CORRECT)
        except RlfleetError as error:
            yield failed(one, "BadRequest", str(error), _CORRECT)


def _there(api: Api, manifests: list[Manifest]) -> dict[str, list[Json]]:
    """The objects of the namespaces that the files name; none where the cluster has no such kind."""
    found: dict[str, list[Json]] = {}
    for namespace in sorted({one.namespace for one in manifests}):
        for kind, plural in _KINDS.items():
            path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}"
            try:
                found.setdefault(kind, []).extend(cluster.get(api, path)["items"])
            except NotFound:
                continue
    return found
