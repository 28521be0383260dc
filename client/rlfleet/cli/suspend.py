"""`rlfleet suspend` and `rlfleet resume`: stop rollouts, and let them continue."""

from __future__ import annotations

from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.weights import Weights


def suspend(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Begin no rollout until `resume`. A pause that has begun is completed."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name).metadata.name
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
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name).metadata.name
    Weights(target, objects=objects).resume()
    show.console().print(f"{escape(target)}: rollouts continue")
