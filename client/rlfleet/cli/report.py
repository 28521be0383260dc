"""`rlfleet report`: one rollout as a page to keep or to send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.cli.page import page


def report(
    name: Name = None,
    file: Annotated[
        Path | None, typer.Option(help="Write the page to this file, not to the output.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Write a self-contained HTML page about the rollout of the desired version."""
    api = cluster.connect_fleet(name, namespace, context, kubeconfig)
    weights = cluster.find(api, name)
    text = page(weights, cluster.fleet_of(api, weights), cluster.now())
    if file is None:
        print(text, end="")  # noqa: T201 - rich would wrap and colour it
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from None
    show.console().print(f"{escape(weights.metadata.name)}: written to {escape(str(file))}")
