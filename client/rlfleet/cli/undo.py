"""`rlfleet undo`: go back to the version that was applied before."""

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
from rlfleet.cli.view import version_before
from rlfleet.errors import NotFound
from rlfleet.weights import Weights


def undo(
    name: Name = None,
    wait: Wait = False,
    timeout: Timeout = 600,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Go back to the last version of the run that was applied and is not the desired one."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    seen = cluster.find(objects, name)
    target, version = seen.metadata.name, version_before(seen)
    if version is None:
        raise NotFound(
            f"the history of {target!r} has no version of this run that was applied before "
            f"{seen.spec.version}; name one: rlfleet rollback VERSION {target} -n {objects.namespace}"
        )
    weights = Weights(target, objects=objects)
    outcome.report(
        target,
        objects.namespace,
        lambda: weights.rollback(version, wait=wait, timeout_seconds=timeout),
        output,
        wait=wait,
    )
