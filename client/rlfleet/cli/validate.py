"""`rlfleet validate`: would the cluster and the operator take these manifests?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rlfleet.cli import checklist, cluster, dry_runs
from rlfleet.cli.api import Api
from rlfleet.cli.checks import Result
from rlfleet.cli.manifests import read
from rlfleet.cli.model_facts import checkpoint_bytes
from rlfleet.cli.named_objects import lacking, made_by
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.cli.validation import (
    FLEET,
    Finding,
    Manifest,
    failed,
    finding,
    findings,
    flag_findings,
    spec_findings,
)
from rlfleet.errors import NotFound
from rlfleet.ports import Json
from rlfleet_resources.names import API_VERSION, GROUP


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
    manifests, found = read(files, api.namespace)
    ours = [m for m in manifests if str(m.body.get("apiVersion")).startswith(f"{GROUP}/")]
    if not ours and not found:
        raise NotFound(
            f"there is no object of {API_VERSION} in {', '.join(files)}; name other files"
        )
    refused = list(dry_runs.refusals(api, ours))
    failed_objects = {one.object for one in refused if one.result is Result.FAIL}
    broken = [*refused, *findings(ours, _there(api, ours), failed_objects)]
    taken = [one for one in ours if str(one) not in failed_objects]
    alone = [
        *flag_findings(taken),
        *(found for one in taken for found in spec_findings(one, _model_bytes(one))),
        *dry_runs.overlay_refusals(api, taken),
        *_missing(api, taken, manifests),
    ]
    bad = {(b.file, b.object) for b in broken}
    bad |= {(b.file, b.object) for b in alone if b.result is Result.FAIL}
    fine = [
        finding(Result.OK, one, "the cluster takes it")
        for one in ours
        if (one.file, str(one)) not in bad
    ]
    checklist.report([*found, *fine, *broken, *alone], output)


def _missing(api: Api, ours: list[Manifest], manifests: list[Manifest]) -> Iterator[Finding]:
    """Objects that fleets name, and that neither the namespace nor the files have."""
    for one in ours:
        if one.kind != FLEET:
            continue
        nearby = [m for m in manifests if m.namespace == one.namespace]
        given = {(m.kind, m.key[1]) for m in nearby}
        given |= {made for m in nearby for made in made_by(m.body)}
        for found in lacking(api, one.namespace, one.body.get("spec"), given):
            named = found.named
            what = f"{named.kind} {named.name}, which {named.field} names,"
            if found.error is None:
                rule = f"{named.kind}NotFound"
                remedy = f"create it in namespace {one.namespace!r}, or correct the name"
                yield failed(one, rule, f"{what} does not exist", remedy)
            else:
                message, _, remedy = str(found.error).partition("; ")
                note = f"{what} cannot be checked: {message}"
                yield finding(
                    Result.WARN, one, note, rule="Forbidden", remedy=remedy or "try again"
                )


def _model_bytes(fleet: Manifest) -> int | None:
    """The size of the tensors of a fleet's model, if this machine sees its directory by the same path."""
    found: Any = fleet.body.get("spec")
    for name in ("model", "source", "path"):
        found = found.get(name) if isinstance(found, dict) else None
    return checkpoint_bytes(Path(str(found))) if found else None


def _there(api: Api, manifests: list[Manifest]) -> dict[str, list[Json]]:
    """The objects of the namespaces that the files name; none where the cluster has no such kind."""
    found: dict[str, list[Json]] = {}
    for namespace in sorted({one.namespace for one in manifests}):
        for kind, plural in dry_runs.KINDS.items():
            path = f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}"
            try:
                found.setdefault(kind, []).extend(cluster.get(api, path)["items"])
            except NotFound:
                continue
    return found
