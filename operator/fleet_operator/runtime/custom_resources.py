"""Keeps the store of custom resources filled: one list at the start, page by page, then kopf's watches.

A watch may have a gap: kopf lists again after 410, and delivers only the objects that exist. So the
operator lists the uids from time to time, and after each list of kopf, and forgets objects that are gone.

kopf ends when the API server refuses one of its reads, in any namespace. The operator then keeps the last
state of the refused namespaces, reports the refusal on their fleets, and watches the other namespaces. Once
another one can be read, it lists again and watches that one too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from fleet_operator.errors import Conflict, FleetError, NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime import kopf_watch
from fleet_operator.runtime.backoff import Backoff
from fleet_operator.runtime.reads import OnRead, collection, pages, try_read
from fleet_operator.runtime.store import Store
from fleet_operator.time_shares import TimeShares
from rlfleet_resources import names

logger = logging.getLogger(__name__)

ROOT = f"/apis/{names.GROUP}/{names.VERSION}"
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 10.0
Scope = str | None
"""A watched namespace; None for all."""
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

    `namespaces`: empty for all.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        namespaces: tuple[str, ...],
        on_read: OnRead,
        shares: TimeShares,
    ) -> None:
        self._kube = kube
        self._store = store
        self._scopes: tuple[Scope, ...] = namespaces or (None,)
        self._on_read = on_read
        self._shares = shares
        self._listed = asyncio.Event()

    async def fill(self) -> None:
        """List everything into the store. Errors: Terminal without CRDs or without rights."""
        for scope in self._scopes:
            await self._fill(scope)

    async def _fill(self, scope: Scope) -> None:
        seen: set[str] = set()
        for plural, put in (
            (names.FLEET_PLURAL, self._store.put_fleet),
            (names.WEIGHTS_PLURAL, self._store.put_weights),
        ):
            seen |= await self._take(collection(ROOT, plural, scope), put)
        self._store.forget_all_but(seen, scope)

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
            await self.forget_gone()

    async def forget_gone(self) -> None:
        """Forget objects that a complete list of their namespace does not have.

        Objects that the watch brings meanwhile stay. So do those of a namespace that cannot be listed.
        """
        for scope in self._scopes:
            before, seen = self._store.uids(scope), set[str]()
            try:
                for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL):
                    async for page in pages(self._kube, collection(ROOT, plural, scope)):
                        for body in page["items"]:
                            seen.add(body["metadata"]["uid"])
                            await asyncio.sleep(0)  # each may take some milliseconds to parse
            except FleetError as error:
                logger.warning(
                    "deleted custom resources in %s may stay known: %s; next attempt in %.0f s",
                    scope or "all namespaces",
                    error,
                    CHECK_SECONDS,
                )
            else:
                came = self._store.uids(scope) - before
                self._store.forget_all_but(seen | came, scope)

    async def follow(self, watching: asyncio.Event, take_signals: Callable[[], None]) -> None:
        """Watch until cancelled; sets `watching` once kopf has started.

        `take_signals` takes SIGTERM and SIGINT back from kopf whenever it has started again.
        Errors: the error that ended kopf, unless the API server refuses the reads.
        """

        def begin() -> None:
            take_signals()
            self.note_listed()  # an object may be gone since `fill`

        watched = self._scopes
        while True:
            try:
                if not await self._watch(watched, watching, begin):
                    return
            except Exception as error:  # any error of kopf; raised again unless reads are refused
                failing = (await self._read_errors(watched)).values()
                if not any(isinstance(e, Terminal) for errors in failing for e in errors):
                    raise
                logger.error(
                    "the custom resources cannot be read: %s. The operator keeps the last state and tries again",
                    error,
                )
            take_signals()
            watched = await self._fill_readable()
            where = ", ".join(scope or "all namespaces" for scope in watched)
            logger.info("the custom resources can be read again in %s", where)
            watching = asyncio.Event()

    async def _watch(
        self, watched: tuple[Scope, ...], watching: asyncio.Event, begin: Callable[[], None]
    ) -> bool:
        """Watch with kopf. Returns: whether it ended because another namespace can be read."""
        more = asyncio.Event()
        # These start before kopf, which waits at its end for all tasks that started after it.
        tasks = [
            asyncio.create_task(_after(watching, begin)),
            asyncio.create_task(self._await_more(watched, more)),
        ]
        namespaces = tuple(scope for scope in watched if scope is not None)
        try:
            await kopf_watch.run(
                *(self._store, namespaces, watching, self.note_listed, more, self._shares)
            )
        finally:
            for task in tasks:
                task.cancel()
        return more.is_set()

    async def _await_more(self, watched: tuple[Scope, ...], more: asyncio.Event) -> None:
        """Set `more` once another namespace than the watched ones can be read."""
        refused = [scope for scope in self._scopes if scope not in watched]
        while refused:
            await asyncio.sleep(REFUSED_SECONDS)
            if not all((await self._read_errors(refused)).values()):
                more.set()
                return

    async def _fill_readable(self) -> tuple[Scope, ...]:
        """List all namespaces that can be read into the store, once there is one. Returns: them."""
        while True:
            filled: list[Scope] = []
            for scope, errors in (await self._read_errors(self._scopes)).items():
                if not errors:
                    with suppress(Terminal):  # refused since then
                        await self._fill(scope)
                        filled.append(scope)
            if filled:
                return tuple(filled)
            await asyncio.sleep(REFUSED_SECONDS)

    async def _read_errors(self, scopes: Sequence[Scope]) -> dict[Scope, list[FleetError]]:
        """Check whether the two resources of each namespace can be read, of all namespaces at once."""

        async def errors_in(scope: Scope) -> list[FleetError]:
            return [
                error
                for plural in (names.FLEET_PLURAL, names.WEIGHTS_PLURAL)
                for error in await try_read(self._kube, ROOT, plural, scope, self._on_read)
            ]

        errors = await asyncio.gather(*map(errors_in, scopes))
        return dict(zip(scopes, errors, strict=True))

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
                        await asyncio.sleep(0)  # each may take some milliseconds to parse
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
