"""`rlfleet check`: would the workers of a fleet accept this checkpoint?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import cluster, kubectl, show
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output
from rlfleet.cli.pods import worker_container, worker_status
from rlfleet.errors import NotFound
from rlfleet.ports import Json
from rlfleet_resources.base import Resource
from rlfleet_resources.names import WORKER_CONTAINER

_TAKEN = frozenset({"--model", "--revision", "--weights-root", "--max-lora-rank"})
"""Options of `serve` that decide what a worker accepts."""
_RENAMED = {"--model": "--against"}


class Kind(StrEnum):
    """Kind of weights as which a directory is read."""

    CHECKPOINT = "checkpoint"
    ADAPTER = "adapter"


class CheckView(Resource):
    """The result of a worker's checks. `reason` and `message` are of a refusal, the rest is not.

    `remarks`: what of the files the workers ignore or cast.
    """

    pod: str
    directory: str
    accepted: bool
    kind: str = ""
    tensors: int = 0
    bytes: int = 0
    digest: str = ""
    remarks: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


def check(
    directory: Annotated[
        str, typer.Argument(help="A checkpoint or a LoRA adapter, by the path that workers see.")
    ],
    name: Name = None,
    kind: Annotated[
        Kind | None,
        typer.Option(help="Read it as this (default: a checkpoint if it holds one)."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Run a stage's checks on a directory in a running worker pod, without loading it."""
    api = cluster.connect(namespace, context, kubeconfig)
    fleet, _ = cluster.find_fleet(api, name)
    pods = [pod for pod in cluster.pods_of(api, fleet) if _is_running(pod)]
    if not pods:
        raise NotFound(
            f"fleet {fleet.metadata.name!r} has no running worker to check in; see rlfleet workers"
        )
    command = command_for(_arguments(pods[0]), directory, kind)
    found = _found(pods[0], directory, command, kubectl.Cluster(context, kubeconfig))
    show.show(found, output, lambda: _render(found))
    if not found.accepted:
        raise typer.Exit(CHECKS_FAILED)


def _found(pod: Json, directory: str, command: Sequence[str], where: kubectl.Cluster) -> CheckView:
    """The result that the worker's command prints. Errors: RlfleetError, if it prints no result."""
    named = pod["metadata"]["name"]
    ended = where.exec(pod["metadata"]["namespace"], named, WORKER_CONTAINER, command)
    try:
        printed = json.loads(ended.output.strip().rpartition("\n")[2])
        return CheckView.model_validate({**printed, "pod": named, "directory": directory})
    except (ValueError, TypeError):  # a pydantic ValidationError is a ValueError
        raise kubectl.failure(ended, named) from None


def command_for(arguments: Sequence[str], directory: str, kind: Kind | None = None) -> list[str]:
    """The worker's command that checks a directory as a worker with these arguments would."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    given = [(n, value) for n, value in pairwise(own) if n in _TAKEN]
    if "--max-loras" not in own:
        given = [
            *(each for each in given if each[0] != "--max-lora-rank"),
            ("--max-lora-rank", "0"),
        ]
    if kind is not None:
        given.append(("--kind", kind.value))
    options = [f"{_RENAMED.get(n, n)}={value}" for n, value in given]
    return ["python3", "-m", "fleet_worker", "check", "--output=json", *options, directory]


def _is_running(pod: Json) -> bool:
    is_going = pod["metadata"].get("deletionTimestamp")
    return "running" in worker_status(pod).get("state", {}) and not is_going


def _arguments(pod: Json) -> list[str]:
    return list(worker_container(pod).get("args") or ())


def _render(found: CheckView) -> None:
    if found.accepted:
        facts = f"{found.kind}, {show.plural(found.tensors, 'tensor')}, {found.bytes} bytes"
        text = f"[green]accepted[/]  {facts}, {found.digest}"
    else:
        text = f"[red]refused[/]  {escape(found.reason)}: {escape(found.message)}"
    show.console().print(f"{escape(found.directory)} in {found.pod}: {text}")
    for remark in found.remarks:
        show.console().print(f"[yellow]remark[/]  {escape(remark)}")
