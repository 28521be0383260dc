"""Options that several verbs have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rlfleet.cli import candidates


class Output(StrEnum):
    """How a verb prints what it has found."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Name = Annotated[
    str | None,
    typer.Argument(
        help="A WeightVersion or a fleet; not needed where the namespace has only one.",
        autocompletion=candidates.names,
    ),
]
Version = Annotated[str, typer.Argument(help="Label of the weights.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace (default: the context's).",
        autocompletion=candidates.namespaces,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig.", autocompletion=candidates.contexts),
]
Kubeconfig = Annotated[
    str | None, typer.Option(help="Kubeconfig file (default: $KUBECONFIG or ~/.kube/config).")
]
Format = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the outcome.")]
WaitForFiles = Annotated[
    bool,
    typer.Option(
        "--wait-for-files",
        help="With --wait, wait also for a directory that no worker finds (default: 10 seconds).",
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait with --wait.")]
