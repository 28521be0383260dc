"""`rlfleet retry`: try an abandoned version again."""

from __future__ import annotations

from rlfleet.cli import cluster, outcome
from rlfleet.cli.options import (
    Context,
    Format,
    Kubeconfig,
    Name,
    Namespace,
    Output,
    Timeout,
    Wait,
)
from rlfleet.weights import Weights


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
    target = cluster.find(objects, name).metadata.name
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.retry(wait=wait, timeout_seconds=timeout),
        output,
        wait=wait,
    )
