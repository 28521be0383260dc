"""`rlfleet version`: the releases of the client, of the operators, and of Kubernetes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from rlfleet.cli import cluster, inspection, show
from rlfleet.cli.api import Api
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.errors import RlfleetError
from rlfleet.release import release
from rlfleet_resources.base import Resource


class OperatorView(Resource):
    """One Deployment of operators."""

    namespace: str
    name: str
    image: str
    ready: int


class VersionView(Resource):
    """The releases. None: this account may not see it, or the verb did not look."""

    client: str
    kubernetes: str | None = None
    operators: tuple[OperatorView, ...] | None = None


def version(
    only_client: Annotated[
        bool, typer.Option("--client", help="Only that of this program, without a cluster.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the release of this program, and what runs in the cluster."""
    found, unread = VersionView(client=release()), None
    if not only_client:
        try:
            api = cluster.connect(namespace, context, kubeconfig)
            kubernetes = str(cluster.get(api, "/version").get("gitVersion", ""))
            found = VersionView(client=release(), kubernetes=kubernetes, operators=_operators(api))
        except RlfleetError as error:
            unread = error
    show.show(found, output, lambda: _render(found))
    if unread is not None:
        raise unread


def _operators(api: Api) -> tuple[OperatorView, ...] | None:
    found = inspection.operators(api)
    if isinstance(found, RlfleetError):
        return None
    return tuple(
        OperatorView(
            namespace=one["metadata"]["namespace"],
            name=one["metadata"]["name"],
            image=one["spec"]["template"]["spec"]["containers"][0].get("image", ""),
            ready=(one.get("status") or {}).get("readyReplicas", 0),
        )
        for one in found["items"]
    )


def _render(found: VersionView) -> None:
    console = show.console()
    console.print(f"client      {escape(found.client)}")
    if found.kubernetes is None:
        return
    for one in found.operators or ():
        ready = "" if one.ready else ", no replica is ready"
        console.print(
            f"operator    {escape(one.image)} ({escape(one.namespace)}/{escape(one.name)}{ready})"
        )
    if not found.operators:
        seen = (
            "there is none"
            if found.operators is not None
            else "this account may not list Deployments"
        )
        console.print(f"operator    {seen}")
    console.print(f"kubernetes  {escape(found.kubernetes)}")
