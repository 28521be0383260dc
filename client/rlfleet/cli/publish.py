"""`rlfleet publish`: ask a fleet for a version."""

from __future__ import annotations

from typing import Annotated

import typer

from rlfleet.cli import cluster, outcome
from rlfleet.cli.options import (
    Context,
    Format,
    Kubeconfig,
    Name,
    Namespace,
    Output,
    Timeout,
    Version,
    Wait,
)
from rlfleet.weights import Weights


def publish(
    version: Version,
    name: Name = None,
    path: Annotated[
        str | None, typer.Option(help="Directory as workers see it; by default the present source.")
    ] = None,
    digest: Annotated[
        str | None, typer.Option(help="sha256:… of the manifest of the files.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Training run.")] = None,
    create_for: Annotated[
        str | None, typer.Option(help="Create the WeightVersion for this fleet if it is missing.")
    ] = None,
    wait: Wait = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Ask a fleet for a version of its weights."""
    objects = cluster.connect_fleet(name or create_for, namespace, context, kubeconfig)
    target = name or create_for if create_for else cluster.find(objects, name).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.publish(
            version,
            path=path,
            digest=digest,
            run_id=run,
            create_for=create_for,
            wait=wait,
            timeout_seconds=timeout,
        ),
        output,
        wait=wait,
    )
