"""The verbs that change a version: `rlfleet publish`, `rollback`, `undo` and `retry`."""

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
    WaitForFiles,
)
from rlfleet.weights import Weights


def publish(
    version: Version,
    name: Name = None,
    path: Annotated[
        str | None, typer.Option(help="Directory as workers see it; by default the present source.")
    ] = None,
    same_files: Annotated[
        bool,
        typer.Option(
            "--same-files",
            help="Under a source without {version}, name the files of the version before.",
        ),
    ] = False,
    digest: Annotated[
        str | None, typer.Option(help="Digest (sha256:…) of the checkpoint's manifest.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Training run.")] = None,
    create_for: Annotated[
        str | None, typer.Option(help="Create the WeightVersion for this fleet if it is missing.")
    ] = None,
    traceparent: Annotated[
        str | None,
        typer.Option(help="W3C traceparent of the span that the rollout becomes a child of."),
    ] = None,
    wait: Wait = False,
    wait_for_files: WaitForFiles = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Ask a fleet for a version of its weights."""
    objects = cluster.connect_fleet(name or create_for, namespace, context, kubeconfig)
    target = (
        name or create_for
        if create_for
        else cluster.find(objects, name, within=timeout).metadata.name
    )
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.publish(
            version,
            path=path,
            digest=digest,
            run_id=run,
            same_files=same_files,
            create_for=create_for,
            traceparent=traceparent,
            wait=wait,
            wait_for_files=wait_for_files,
            timeout_seconds=timeout,
        ),
        output,
        wait=wait,
    )


def rollback(
    version: Version,
    name: Name = None,
    path: Annotated[
        str | None,
        typer.Option(help="Directory of the version; by default what the fleet recorded."),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(help="Digest (sha256:…) of its files, if the fleet requires it."),
    ] = None,
    wait: Wait = False,
    wait_for_files: WaitForFiles = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Go back to an earlier version of the run."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name, within=timeout).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.rollback(
            version,
            path=path,
            digest=digest,
            wait=wait,
            wait_for_files=wait_for_files,
            timeout_seconds=timeout,
        ),
        output,
        wait=wait,
    )


def undo(
    name: Name = None,
    wait: Wait = False,
    wait_for_files: WaitForFiles = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Take the last version back: return to what is applied still, or was applied before in the run."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name, within=timeout).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.undo(wait=wait, wait_for_files=wait_for_files, timeout_seconds=timeout),
        output,
        wait=wait,
    )


def retry(
    name: Name = None,
    wait: Wait = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Try an abandoned version again."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name, within=timeout).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.retry(wait=wait, timeout_seconds=timeout),
        output,
        wait=wait,
    )
