"""kopf: watches of the two custom resources, its login and its settings. The only importer of kopf.

Handlers carry no decision: they put what they see into the store, which asks for a reconcile.
`on.event` keeps no state on the objects, sets no finalizer and writes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from fleet_operator.api import names
from fleet_operator.runtime.store import Store


def build_registry(store: Store) -> kopf.OperatorRegistry:
    """Handlers that fill the store."""
    registry = kopf.OperatorRegistry()
    fleets = (names.GROUP, names.VERSION, names.FLEET_PLURAL)
    weights = (names.GROUP, names.VERSION, names.WEIGHTS_PLURAL)

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(*fleets, registry=registry)
    async def fleet_seen(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        (store.remove_fleet if type == "DELETED" else store.put_fleet)(body)

    @kopf.on.event(*weights, registry=registry)
    async def weights_seen(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        (store.remove_weights if type == "DELETED" else store.put_weights)(body)

    return registry


def build_settings() -> kopf.OperatorSettings:
    """Settings for a loop that must notice a patch within milliseconds and a dead watch soon."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no rights on CRDs and namespaces are needed
    settings.posting.enabled = False  # events are `recorder`'s
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 15
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 5, 5, 5, 5)
    settings.queueing.idle_timeout = 1
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    return settings


async def run(store: Store, namespaces: tuple[str, ...], ready: asyncio.Event) -> None:
    """Watch until cancelled; sets `ready` once kopf has started.

    kopf takes SIGTERM and SIGINT for itself when it starts: who wants them takes them back then.
    """
    await kopf.operator(
        registry=build_registry(store),
        settings=build_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
    )
