"""`rlfleet rollback`: go back to an earlier version of the run."""

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


def rollback(
    version: Version,
    name: Name = None,
    path: Annotated[
        str | None,
        typer.Option(help="Directory of the version; by default what the fleet recorded."),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Go back to an earlier version of the run."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.rollback(version, path=path, wait=wait, timeout_seconds=timeout),
        output,
        wait=wait,
    )
