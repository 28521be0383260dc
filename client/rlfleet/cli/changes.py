"""The verbs that change a version: `rlfleet publish`, `rollback`, `undo`, `retry`, `suspend` and `resume`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import cluster, outcome, show
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
from rlfleet.ports import Place
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
    outcome.report(
        objects,
        target,
        lambda weights: weights.publish(
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
    objects, target = _named(name, namespace, context, kubeconfig, within=timeout)
    outcome.report(
        objects,
        target,
        lambda weights: weights.rollback(
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
    objects, target = _named(name, namespace, context, kubeconfig, within=timeout)
    outcome.report(
        objects,
        target,
        lambda weights: weights.undo(
            wait=wait, wait_for_files=wait_for_files, timeout_seconds=timeout
        ),
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
    objects, target = _named(name, namespace, context, kubeconfig, within=timeout)
    outcome.report(
        objects,
        target,
        lambda weights: weights.retry(wait=wait, timeout_seconds=timeout),
        output,
        wait=wait,
    )


def suspend(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Begin no rollout until `resume`. A pause that has begun is completed."""
    objects, target = _named(name, namespace, context, kubeconfig)
    Weights(target, objects=objects).suspend()
    show.console().print(
        f"{escape(target)}: rollouts are suspended. Continue: rlfleet resume {target} -n {objects.namespace}"
    )


def resume(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let rollouts continue."""
    objects, target = _named(name, namespace, context, kubeconfig)
    Weights(target, objects=objects).resume()
    show.console().print(f"{escape(target)}: rollouts continue")


def _named(
    name: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
    *,
    within: float = cluster.PATIENCE_SECONDS,
) -> tuple[Place, str]:
    """Where the WeightVersion is that a name means, and its own name. Errors: as `cluster.find`."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    return objects, cluster.find(objects, name, within=within).metadata.name
