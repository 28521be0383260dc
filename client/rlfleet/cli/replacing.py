"""The verbs that replace workers: `rlfleet restart` and `rlfleet drain`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import candidates, cluster, show
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.errors import NotFound
from rlfleet_resources.names import API_VERSION, LABEL_FLEET


def restart(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Replace all workers of a fleet, spec.update.maxUnavailable at a time, as after a change of their template."""
    api = cluster.connect(namespace, context, kubeconfig)
    fleet, _ = cluster.find_fleet(api, name)
    where, called = fleet.metadata.namespace, fleet.metadata.name
    path = f"/apis/{API_VERSION}/namespaces/{where}/inferencefleets/{called}"
    at = cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    manager = {"fieldManager": cluster.FIELD_MANAGER, "fieldValidation": "Strict"}
    written = api.call("PATCH", path, manager, {"spec": {"update": {"restartedAt": at}}})
    update = written["spec"]["update"]
    workers = show.plural(fleet.spec.replicas, "worker")
    if update.get("paused"):
        said = f"{workers} will be replaced after spec.update.paused is false"
    elif update.get("type") == "OnDelete":
        said = (
            f"{workers} will be replaced as their pods are deleted (spec.update.type is OnDelete)"
        )
    else:
        said = f"{workers} will be replaced. Follow it: rlfleet watch {called} -n {where}"
    show.console().print(f"{escape(called)}: {escape(said)}")


def drain(
    pod: Annotated[
        str, typer.Argument(help="A worker's pod.", autocompletion=candidates.worker_pods)
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Evict one worker: it takes no more requests, finishes those that run, and is replaced by a new one."""
    api = cluster.connect(namespace, context, kubeconfig)
    path = f"/api/v1/namespaces/{api.namespace}/pods/{pod}"
    labels = cluster.get(api, path)["metadata"].get("labels") or {}
    if LABEL_FLEET not in labels:
        raise NotFound(f"pod {pod!r} is not a worker of a fleet; see rlfleet workers")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": api.namespace},
    }
    api.call("POST", f"{path}/eviction", None, body)
    show.console().print(
        f"{escape(pod)}: drains, and fleet {escape(labels[LABEL_FLEET])} gets a new worker. "
        f"Follow it: rlfleet workers {escape(labels[LABEL_FLEET])} -n {api.namespace}"
    )
