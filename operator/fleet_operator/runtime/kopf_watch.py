"""Watches the two custom resources with kopf. The only importer of kopf.

Handlers decide nothing: they put each object into the store, which requests a reconcile. kopf carries an object
as a text (`bounded_session`), and the handler parses it, so that one at a time is in memory.
`on.event` keeps no state on the objects, sets no finalizer and writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import Any

import kopf

from fleet_operator.clients.bounded_json import opened
from fleet_operator.clients.bounded_session import bounded_session
from fleet_operator.clients.changes_in_turn import ChangesInTurn
from fleet_operator.measured import held_seconds
from fleet_operator.ports import WATCH_SILENCE_SECONDS
from fleet_operator.runtime.backoff import Backoff
from fleet_operator.runtime.list_watch import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    SERVER_TIMEOUT_SECONDS,
)
from fleet_operator.runtime.reads import CHUNK
from fleet_operator.runtime.store import Store
from fleet_operator.time_shares import TimeShares
from rlfleet_resources import names

# Without one, kopf makes it of the name of the user, and fails where the image does not know the user ID
# of the pod. It is used between operators that know each other (peering), which is off here.
IDENTITY = "rlfleet"


class RandomWaits:
    """kopf's waits between the attempts of one request. They are random for each request, so that watches
    that broke together do not return together. kopf ends after the last one.
    """

    ATTEMPTS = 8

    def __iter__(self) -> Iterator[float]:
        """Seconds, one for each attempt."""
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        return (backoff.next_seconds() for _ in range(self.ATTEMPTS))


class NoChanges(kopf.DiffBaseStorage):
    """kopf's record of the last handled state. It stays empty, since no handler is for changes: kopf would
    copy each object twice for each event, to compare it with the state before.
    """

    def build(self, **_: Any) -> Any:
        """The part of an object that kopf compares: nothing."""
        return {}

    def fetch(self, **_: Any) -> None:
        """The last handled state: none."""

    def store(self, **_: Any) -> None:
        """Keep nothing on the object."""


def build_registry(
    store: Store, shares: TimeShares, listed: Callable[[], None], on_large: Callable[[], bool]
) -> kopf.OperatorRegistry:
    """The handlers that fill the store.

    `listed`: called for each object of a list. `on_large`: see `bounded_session`.
    """
    registry = kopf.OperatorRegistry()
    fleets = (names.GROUP, names.VERSION, names.FLEET_PLURAL)
    weights = (names.GROUP, names.VERSION, names.WEIGHTS_PLURAL)
    changes: defaultdict[str, ChangesInTurn] = defaultdict(lambda: ChangesInTurn(shares))

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        found = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        if found is None:
            return None
        tls, headers = found.as_ssl_context(), found.as_http_headers()
        return kopf.AiohttpSession(
            server=found.server,
            default_namespace=found.default_namespace,
            expiration=found.expiration,
            aiohttp_session=bounded_session(tls, headers, found.proxy_url, on_large, changes),
        )

    @kopf.on.event(*fleets, registry=registry)
    async def fleet_seen(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            store.remove_fleet(body)
        elif type is not None:
            store.put_fleet(opened(body))
        else:
            await take(body, store.put_fleet, shares)
            listed()

    @kopf.on.event(*weights, registry=registry)
    async def weights_seen(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            store.remove_weights(body)
        elif type is not None:
            store.put_weights(opened(body))
        else:
            await take(body, store.put_weights, shares)
            listed()

    return registry


async def take(
    body: Mapping[str, Any], put: Callable[[Mapping[str, Any]], None], shares: TimeShares
) -> None:
    """Parse an object of a list and put it into the store, once its namespace may use time. Those of a watch have
    waited for that before kopf has them (`changes_in_turn`): kopf holds each event that waits, and delivers all.
    """
    loop, namespace = asyncio.get_running_loop(), body["metadata"]["namespace"]
    while (seconds := shares.wait_seconds(namespace, loop.time())) > 0:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(seconds)
    began = monotonic()
    put(opened(body))
    shares.note(namespace, held_seconds(began), loop.time())


def build_settings() -> kopf.OperatorSettings:
    """Settings that notice a patch within milliseconds, and replace a silent watch as `ListWatch` does."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no rights on CRDs and namespaces are needed
    settings.posting.enabled = False  # `event_recorder` posts Events
    settings.watching.server_timeout = random.randint(*SERVER_TIMEOUT_SECONDS)  # noqa: S311 - no secret
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = WATCH_SILENCE_SECONDS
    settings.watching.chunk_size = CHUNK
    settings.networking.request_timeout = 15
    settings.networking.error_backoffs = RandomWaits()
    settings.queueing.idle_timeout = 1
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    settings.persistence.diffbase_storage = NoChanges()
    return settings


def smaller_pages(settings: kopf.OperatorSettings) -> bool:
    """Let kopf list half as many objects in a page. Returns: whether there were more than one."""
    before = settings.watching.chunk_size or CHUNK
    settings.watching.chunk_size = max(before // 2, 1)
    return before > 1


async def run(
    store: Store,
    namespaces: tuple[str, ...],
    ready: asyncio.Event,
    listed: Callable[[], None],
    stop: asyncio.Event,
    shares: TimeShares,
) -> None:
    """Watch until cancelled, or until `stop` is set; sets `ready` once kopf has started.

    `listed`: called for each object of a list. kopf lists at the start, and again after 410. It does not tell
    which objects are gone.

    kopf replaces the handlers of SIGTERM and SIGINT when it starts. Install them again once `ready` is set.
    """
    settings = build_settings()
    await kopf.operator(
        registry=build_registry(store, shares, listed, partial(smaller_pages, settings)),
        settings=settings,
        identity=IDENTITY,  # type: ignore[arg-type]  # kopf does not export its type of string
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
        stop_flag=stop,
    )
