"""`rlfleet metrics`: the metrics of one worker, as Prometheus would read them."""

from __future__ import annotations

from typing import Annotated

import typer

from rlfleet.cli import candidates, cluster
from rlfleet.cli.options import Context, Kubeconfig, Namespace
from rlfleet.cli.pods import metrics_port
from rlfleet.errors import Forbidden, NotFound


def metrics(
    pod: Annotated[
        str, typer.Argument(help="A worker's pod.", autocompletion=candidates.worker_pods)
    ],
    contains: Annotated[
        str,
        typer.Option("--contains", help="Only lines with this text, such as vllm:num_requests."),
    ] = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the metrics of a worker, read through the API server: its port listens on the pod's address only."""
    api = cluster.connect(namespace, context, kubeconfig)
    path = f"/api/v1/namespaces/{api.namespace}/pods/{pod}"
    port = metrics_port(cluster.get(api, path))
    if port is None:
        raise NotFound(f"pod {pod!r} is not a worker of a fleet; see rlfleet workers")
    try:
        text = api.text(f"{path}:{port}/proxy/metrics")
    except Forbidden as error:
        raise Forbidden(f"{error} (get on pods/proxy)") from error
    # A worker is not trusted, and a terminal obeys control characters.
    lines = ["".join(filter(str.isprintable, line)) for line in text.splitlines()]
    lines = [line for line in lines if contains in line]
    print("\n".join(lines))  # noqa: T201 - rich would wrap and colour it
