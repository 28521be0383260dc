"""Keeps the store of custom resources filled: one whole list at the start, then kopf's watches.

kopf ends when the API server refuses one of its reads. The operator goes on with what it knows then,
reports the refusal on the fleets, and reads everything anew once it is allowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fleet_operator.api import names
from fleet_operator.errors import FleetError, NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime import triggers
from fleet_operator.runtime.list_watch import OnRead, collection, probe
from fleet_operator.runtime.store import Store

logger = logging.getLogger(__name__)

ROOT = f"/apis/{names.GROUP}/{names.VERSION}"
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 15.0
"""Between two probes of a read that is refused."""
NO_CRDS = (
    f"the cluster does not know {names.API_VERSION}: install the CRDs "
    "(helm value crds.enabled, or kubectl apply -f crds/)"
)


class CustomResources:
    """The InferenceFleets and WeightVersions of some namespaces, or of all.

    Args:
        kube: The API.
        store: What is filled.
        namespaces: Where; empty for all.
        on_read: Takes how a list or a watch ends.
    """

    def __init__(
        self, kube: Kube, store: Store, namespaces: tuple[str, ...], on_read: OnRead
    ) -> None:
        self._kube = kube
        self._store = store
        self._namespaces = namespaces
        self._on_read = on_read

    async def fill(self) -> None:
        """Bring the store to what is there now. Errors: Terminal without CRDs or without rights."""
        seen: set[str] = set()
        for namespace in self._namespaces or (None,):
            for plural, put in (
                (names.FLEET_PLURAL, self._store.put_fleet),
                (names.WEIGHTS_PLURAL, self._store.put_weights),
            ):
                for item in await self._list(collection(ROOT, plural, namespace)):
                    seen.add(item["metadata"]["uid"])
                    put(item)
        self._store.forget_all_but(seen)

    async def follow(self, watching: asyncio.Event, take_signals: Callable[[], None]) -> None:
        """Watch until cancelled; sets `watching` once kopf has started.

        `take_signals` takes SIGTERM and SIGINT back from kopf whenever it has started again.
        Errors: whatever ended kopf, unless the API server refuses the reads.
        """
        while True:
            taking = asyncio.create_task(_after(watching, take_signals))
            try:
                return await triggers.run(self._store, self._namespaces, watching)
            except Exception as error:  # whatever kopf ends with; raised again unless refused
                if not any(isinstance(e, Terminal) for e in await self._probe()):
                    raise
                logger.error("the custom resources cannot be read: %s", error)
            finally:
                taking.cancel()
            take_signals()
            await self._allowed()
            await self.fill()
            logger.info("the custom resources can be read again")
            watching = asyncio.Event()

    async def _allowed(self) -> None:
        """Wait until every read succeeds."""
        while True:
            if not any(isinstance(e, (Terminal, Retryable)) for e in await self._probe()):
                return
            await asyncio.sleep(REFUSED_SECONDS)

    async def _probe(self) -> list[FleetError]:
        return [
            error
            for namespace in self._namespaces or (None,)
            for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL)
            for error in await probe(self._kube, ROOT, plural, namespace, self._on_read)
        ]

    async def _list(self, path: str) -> list[Json]:
        while True:
            try:
                found: list[Json] = (await self._kube.get(path))["items"]
            except NotFound as error:
                raise Terminal(NO_CRDS) from error
            except Retryable as error:
                # A server that has just been given the CRDs answers 429 for a while.
                logger.info("%s; again in %.0f s", error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return found


async def _after(event: asyncio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()
