"""`rlfleet report`: one rollout as a page or a picture to keep or to send."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.api import Api
from rlfleet.cli.log_reader import LogReader
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.cli.page import page, page_of_fleet, subtitle
from rlfleet.cli.spans import Span, spans
from rlfleet.cli.view import rollout_view
from rlfleet.cli.waterfall import picture, waterfall
from rlfleet.errors import RlfleetError
from rlfleet.resources import WeightVersion
from rlfleet.words import bounded


class Form(StrEnum):
    """The forms of a report."""

    HTML = "html"
    SVG = "svg"


def report(
    name: Name = None,
    file: Annotated[
        Path | None, typer.Option(help="Write to this file instead of standard output.")
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="A page, or a picture of its waterfalls (default: by the suffix of FILE).",
        ),
    ] = None,
    logs: Annotated[bool, typer.Option(help="Read the logs for the calls to each worker.")] = True,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Write a self-contained page or picture about the rollout of the desired version."""
    api = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target, now = cluster.look(api, name), cluster.now()
    if form is None:
        form = Form.SVG if file is not None and file.suffix == ".svg" else Form.HTML
    text = _text(api, target, now, form, logs=logs)
    if file is None:
        print(text, end="")  # noqa: T201 - rich would wrap and colour it
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from None
    show.console().print(f"{escape(target.name)}: written to {escape(str(file))}")


def _text(api: Api, target: cluster.Target, now: datetime, form: Form, *, logs: bool) -> str:
    fleet, weights = target.fleet, target.weights
    if weights is None:
        if form is Form.SVG:
            message = f"fleet {target.name} has no WeightVersion, so it has no waterfall to draw"
            raise typer.BadParameter(f"{message}; write it as --format html")
        return page_of_fleet(cluster.find_fleet(api, target.name)[0], now)
    calls = _calls(api, target, now) if logs else ()
    if form is Form.HTML:
        return page(weights, fleet, calls, now, collected=_collected(api, weights))
    view = rollout_view(weights, now)
    title = f"{view.name}: version {view.desired}"
    found = waterfall(weights.status.started_at, view.phases, calls)
    return picture(title, subtitle(view, weights, now), found)


def _collected(api: Api, weights: WeightVersion) -> str:
    """The newest Event of a collector that has deleted versions; empty without one that can be read."""
    found = weights.metadata
    wanted = f"involvedObject.uid={found.uid},reason=OldVersionsDeleted"
    path = f"/api/v1/namespaces/{found.namespace}/events"
    try:
        events = cluster.get(api, path, {"fieldSelector": wanted})["items"]
    except RlfleetError:
        return ""
    said = [(e.get("lastTimestamp") or "", bounded(e.get("message") or "")) for e in events]
    return ": ".join(max(said, default=()))


def _calls(api: Api, target: cluster.Target, now: datetime) -> Sequence[Span]:
    """The calls to each worker; none where the logs cannot be read."""
    weights = target.weights
    if weights is None or target.fleet is None or weights.status.started_at is None:
        return ()
    try:
        lines = LogReader(api, target.fleet).new_lines(weights.status.started_at)
        return spans(lines, weights, now)
    except RlfleetError as error:
        show.errors().print(
            f"[yellow]warning:[/] the calls to each worker are not shown: {escape(str(error))}"
        )
        return ()
