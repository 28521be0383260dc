"""Completions for shells: contexts, namespaces and names, as the options before them name the cluster.

A shell waits for it with every key, so an answer that takes long is left out, and no error is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import typer

from rlfleet.cli import cluster
from rlfleet.cli.api import Api
from rlfleet.cli.pods import MANAGED
from rlfleet.kubeconfig import contexts_of
from rlfleet.ports import Kind, run_blocking
from rlfleet_resources.names import LABEL_FLEET

_PATIENCE_SECONDS = 2.0


def contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Contexts of the kubeconfig."""
    return _beginning(incomplete, lambda: contexts_of(ctx.params.get("kubeconfig")))


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces, if the account may list them."""

    def read() -> list[str]:
        found = _connect(ctx).call("GET", "/api/v1/namespaces")["items"]
        return [one["metadata"]["name"] for one in found]

    return _beginning(incomplete, read)


def worker_pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pods of workers in the namespace."""

    def read() -> list[str]:
        api = _connect(ctx)
        path = f"/api/v1/namespaces/{api.namespace}/pods"
        found = api.call("GET", path, {"labelSelector": f"{MANAGED},{LABEL_FLEET}"})["items"]
        return [one["metadata"]["name"] for one in found]

    return _beginning(incomplete, read)


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """WeightVersions and fleets of the namespace."""

    def read() -> Iterator[str]:
        api = _connect(ctx)
        for kind in (Kind.WEIGHTS, Kind.FLEETS):
            yield from (one["metadata"]["name"] for one in run_blocking(_all(api, kind)))

    return _beginning(incomplete, lambda: list(read()))


def _connect(ctx: typer.Context) -> Api:
    namespace, context, kubeconfig = (
        ctx.params.get(option) for option in ("namespace", "context", "kubeconfig")
    )
    return cluster.connect(namespace, context, kubeconfig)


async def _all(api: Api, kind: Kind) -> list[dict[str, dict[str, str]]]:
    return [*await api.all(kind)]


def _beginning(incomplete: str, read: Callable[[], list[str]]) -> list[str]:
    """The words that were read in time and begin so, each once."""
    found: list[str] = []

    def look() -> None:
        with suppress(Exception):
            found.extend(read())

    thread = Thread(target=look, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return [one for one in dict.fromkeys(found) if one.startswith(incomplete)]
