"""Keeps the store of custom resources filled: one list at the start, page by page, then kopf's watches.

A watch may have a gap: kopf lists again after 410, and delivers only the objects that exist. So the
operator lists the uids from time to time, and after each list of kopf, and forgets objects that are gone.

kopf ends when the API server refuses one of its reads. The operator then keeps the last state,
reports the refusal on the fleets, and reads everything again once the reads are allowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from fleet_operator.api import names
from fleet_operator.errors import Conflict, FleetError, NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime import kopf_watch
from fleet_operator.runtime.backoff import Backoff
from fleet_operator.runtime.list_watch import OnRead, collection, pages, try_read
from fleet_operator.runtime.store import Store

logger = logging.getLogger(__name__)

ROOT = f"/apis/{names.GROUP}/{names.VERSION}"
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 10.0
REFUSED_SECONDS = 15.0
"""Between two tries of a read that is refused."""
CHECK_SECONDS = 60.0
"""Between two checks for objects that are gone. A new list of kopf requests one sooner."""
LIST_SECONDS = 1.0
"""How long to wait for the other objects of a new list before the check."""
NO_CRDS = (
    f"the cluster does not know {names.API_VERSION}: install the CRDs "
    "(helm value crds.enabled, or kubectl apply -f crds/)"
)


class CustomResources:
    """Fills the store with the InferenceFleets and WeightVersions of some namespaces, or of all.

    Args:
        kube: The API.
        store: The store to fill.
        namespaces: The watched namespaces; empty for all.
        on_read: Called with the outcome of each list and watch.
    """

    def __init__(
        self, kube: Kube, store: Store, namespaces: tuple[str, ...], on_read: OnRead
    ) -> None:
        self._kube = kube
        self._store = store
        self._namespaces = namespaces
        self._on_read = on_read
        self._listed = asyncio.Event()

    async def fill(self) -> None:
        """List everything into the store. Errors: Terminal without CRDs or without rights."""
        seen: set[str] = set()
        for namespace in self._namespaces or (None,):
            for plural, put in (
                (names.FLEET_PLURAL, self._store.put_fleet),
                (names.WEIGHTS_PLURAL, self._store.put_weights),
            ):
                seen |= await self._take(collection(ROOT, plural, namespace), put)
        self._store.forget_all_but(seen)

    def note_listed(self) -> None:
        """Note that kopf has listed: objects may be gone without an event."""
        self._listed.set()

    async def keep_forgetting(self) -> None:
        """Forget objects that are gone, until cancelled: from time to time, and after each list of kopf."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._listed.wait()
            await asyncio.sleep(LIST_SECONDS)
            self._listed.clear()
            try:
                await self.forget_gone()
            except FleetError as error:
                logger.warning(
                    "deleted custom resources may stay known: %s; next attempt in %.0f s",
                    error,
                    CHECK_SECONDS,
                )

    async def forget_gone(self) -> None:
        """Forget objects that a complete list does not have. Objects that the watch brings meanwhile stay.

        Errors: those of the API; then nothing is forgotten.
        """
        before, seen = self._store.uids(), set[str]()
        for namespace in self._namespaces or (None,):
            for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL):
                async for page in pages(self._kube, collection(ROOT, plural, namespace)):
                    seen |= {body["metadata"]["uid"] for body in page["items"]}
        self._store.forget_all_but(seen | (self._store.uids() - before))

    async def follow(self, watching: asyncio.Event, take_signals: Callable[[], None]) -> None:
        """Watch until cancelled; sets `watching` once kopf has started.

        `take_signals` takes SIGTERM and SIGINT back from kopf whenever it has started again.
        Errors: the error that ended kopf, unless the API server refuses the reads.
        """

        def begin() -> None:
            take_signals()
            self.note_listed()  # an object may be gone since `fill`

        while True:
            beginning = asyncio.create_task(_after(watching, begin))
            try:
                return await kopf_watch.run(
                    self._store, self._namespaces, watching, self.note_listed
                )
            except Exception as error:  # any error of kopf; raised again unless reads are refused
                if not any(isinstance(e, Terminal) for e in await self._read_errors()):
                    raise
                logger.error(
                    "the custom resources cannot be read: %s. The operator keeps the last state and tries again",
                    error,
                )
            finally:
                beginning.cancel()
            take_signals()
            await self._allowed()
            await self.fill()
            logger.info("the custom resources can be read again")
            watching = asyncio.Event()

    async def _allowed(self) -> None:
        """Wait until every read succeeds."""
        while True:
            if not any(isinstance(e, (Terminal, Retryable)) for e in await self._read_errors()):
                return
            await asyncio.sleep(REFUSED_SECONDS)

    async def _read_errors(self) -> list[FleetError]:
        return [
            error
            for namespace in self._namespaces or (None,)
            for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL)
            for error in await try_read(self._kube, ROOT, plural, namespace, self._on_read)
        ]

    async def _take(self, path: str, put: Callable[[Json], None]) -> set[str]:
        """Put every object of a list into the store, page by page. Returns: their uids."""
        backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        while True:
            seen: set[str] = set()
            try:
                async for page in pages(self._kube, path):
                    for body in page["items"]:
                        seen.add(body["metadata"]["uid"])
                        put(body)
            except NotFound as error:
                raise Terminal(NO_CRDS) from error
            except (Retryable, Conflict) as error:
                # A server that has just received the CRDs answers 429 for a while.
                asked_seconds = error.after_seconds if isinstance(error, Retryable) else None
                delay = backoff.next_seconds(asked_seconds=asked_seconds)
                logger.info("%s; next attempt in %.1f s", error, delay)
                await asyncio.sleep(delay)
            else:
                return seen


async def _after(event: asyncio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()
