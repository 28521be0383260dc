"""`rlfleet explain`: what blocks a rollout, or the meaning of a reason."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import candidates, cluster, inspection, operators, show
from rlfleet.cli.explanation import (
    Explanation,
    explain_fleet,
    meaning_of,
    similar_reasons,
    unattended,
    with_checks,
)
from rlfleet.cli.explanation import explain as explanation_of
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.errors import NotConfigured, NotFound
from rlfleet.resources import InferenceFleet


def explain(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="A WeightVersion, a fleet, or a reason such as CheckpointTruncated.",
            autocompletion=candidates.names,
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Say what blocks a rollout or a fleet right now and what to do, or what a reason means."""
    found = meaning_of(subject) if subject else None
    if found is None:
        near = similar_reasons(subject) if subject else []
        try:
            objects = cluster.connect_fleet(subject, namespace, context, kubeconfig)
            target, now = cluster.look(objects, subject), cluster.now()
        except (NotFound, NotConfigured) as error:
            if near:
                raise type(error)(f"{error}; the reason may be {' or '.join(near)}") from None
            raise
        if target.weights is not None:
            found = explanation_of(target.weights, target.fleet, now)
        else:
            found = explain_fleet(cluster.find_fleet(objects, subject)[0], now)
        if target.fleet and (problem := operators.problem(objects, target.fleet, now)):
            found = unattended(found, target.fleet, problem)
        elif target.fleet and not _is_ready(target.fleet):
            checks = inspection.checks_of_fleet(objects, target.fleet.metadata.name)
            found = with_checks(found, checks, objects.namespace)
    shown = found
    show.show(shown, output, lambda: _render(shown))


def _is_ready(fleet: InferenceFleet) -> bool:
    """Whether all workers serve, so that no pod waits for anything."""
    return any((c.type, c.status) == ("Ready", "True") for c in fleet.status.conditions)


def _render(found: Explanation) -> None:
    console = show.console()
    console.print(f"[bold]{escape(found.summary)}[/]")
    if found.meaning:
        console.print(f"  {escape(found.reason)}: {escape(found.meaning)}")
    for line in found.details:
        console.print(f"  {escape(line)}")
    if found.causes:
        console.print("What is wrong:")
    for cause in found.causes:
        console.print(f"  * {escape(cause.message)}")
        console.print(f"    → {escape(cause.remedy)}")
    if found.remedies:
        console.print("What you can do:")
    for line in found.remedies:
        console.print(f"  * {escape(line)}")
