"""Lists and watches the objects of one kind that carry rlfleet's label, in one namespace or in all.

A list comes in pages. A watch uses bookmarks, so that a broken stream resumes at its resourceVersion. On
410 the objects are listed again.

The server ends each stream after less than half a minute. A quiet one may have had no bookmark until then: the
server sends none without a change of the kind. So a stream that delivers nothing for longer, not even its
end, is broken, for example because a proxy on the way has lost it, and is replaced. If the next one is silent,
too, the objects are listed each time, and the read counts as failing.

Streams that broke together return one by one. Each waits for a random time that doubles with every
failure, and at least as long as the server asks for. Streams that began together end at different times.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fleet_operator.api import names
from fleet_operator.errors import Conflict, FleetError, NotFound, Retryable, Silent, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

CHUNK = 500
SERVER_TIMEOUT_SECONDS = (15, 25)
"""The server ends a stream after a time between these, less than the silence after which it counts as
broken."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.4, 10.0
TRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Read:
    """A verb on a resource, by its plural, in one namespace, or in all (None)."""

    verb: Literal["list", "watch"]
    resource: str
    namespace: str | None

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {self.resource} {where}"


OnRead = Callable[[Read, FleetError | None], None]
"""Called with the outcome of a read: an error, or None for success."""


async def try_read(
    kube: Kube, root: str, plural: str, namespace: str | None, on_read: OnRead
) -> list[FleetError]:
    """Check whether a resource can be listed and watched. `root`: as of `ListWatch`.

    Returns: the errors; empty if both are allowed.
    """
    path = collection(root, plural, namespace)
    list_, watch = Read("list", plural, namespace), Read("watch", plural, namespace)
    try:
        page = await kube.get(path, {"limit": "1"})
    except FleetError as error:
        on_read(list_, error)
        return [error]
    on_read(list_, None)
    params = {"resourceVersion": page["metadata"]["resourceVersion"], "timeoutSeconds": "1"}
    try:
        async with asyncio.timeout(TRY_SECONDS):
            async for _ in kube.watch(path, params):
                pass  # A refused watch raises before its first event.
    except (Conflict, TimeoutError):
        pass  # The watch was not refused.
    except FleetError as error:
        on_read(watch, error)
        return [error]
    on_read(watch, None)
    return []


def collection(root: str, plural: str, namespace: str | None) -> str:
    """The path of a resource in one namespace, or in all (None)."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural}"


async def pages(
    kube: Kube, path: str, params: Mapping[str, str] | None = None
) -> AsyncIterator[Json]:
    """Yield the pages of a list. All 10,000 pods at once would be 276 MiB of raw objects.

    Errors: those of the API; Conflict if the next page came too late, so that the list must begin again.
    """
    asked = {**(params or {}), "limit": str(CHUNK)}
    while True:
        page = await kube.get(path, asked)
        yield page
        follow = page["metadata"].get("continue")
        if not follow:
            return
        asked["continue"] = follow


class Sink(Protocol):
    """Takes the objects of a `ListWatch`."""

    def put(self, body: Json) -> None:
        """Take in an object that was listed, added or modified."""

    def remove(self, uid: str) -> None:
        """Forget an object that is gone."""

    def uids_in(self, namespace: str | None) -> set[str]:
        """Uids of what is known of one namespace, or of all."""


class ListWatch:
    """List and watch of the objects that carry rlfleet's label.

    Args:
        kube: The API.
        root: `/api/v1`, or `/apis/GROUP/VERSION`.
        plural: The resource.
        namespace: None for all.
        sink: Takes the objects.
        on_read: Called with the outcome of each list and watch.
    """

    def __init__(
        self,
        kube: Kube,
        root: str,
        plural: str,
        namespace: str | None,
        sink: Sink,
        on_read: OnRead,
    ) -> None:
        self._path = collection(root, plural, namespace)
        self._list_read = Read("list", plural, namespace)
        self._watch_read = Read("watch", plural, namespace)
        self._on_read = on_read
        self._plural = plural
        self._namespace = namespace
        self._kube = kube
        self._sink = sink
        self._version = ""
        self._silent = False
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        """Set when the first list was read or refused. It stays unset while the server is not ready."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            message, asked_seconds = "the stream ended before its first event", None
            read = self._watch_read if self._version else self._list_read
            try:
                if not self._version:
                    await self._list()
                    self._on_read(self._list_read, None)
                    read = self._watch_read
                if await self._watch():
                    continue
                self._on_read(self._watch_read, None)
            except Silent as error:
                self._note_silence(error)
                continue
            except (Conflict, NotFound) as error:
                self._version = ""  # Too old to resume from: list again.
                message = str(error)
                self._report(read, error)
            except FleetError as error:
                message = str(error)
                asked_seconds = error.after_seconds if isinstance(error, Retryable) else None
                self._report(read, error)
            delay = self._backoff.next_seconds(asked_seconds=asked_seconds)
            logger.warning("watch of %s: %s; next attempt in %.1f s", self._plural, message, delay)
            await asyncio.sleep(delay)

    def _note_alive(self) -> None:
        """Note that a stream works."""
        self._on_read(self._watch_read, None)
        self._backoff.reset()
        self._silent = False

    def _note_silence(self, error: Silent) -> None:
        """Note that a stream was silent to its end. The first time, what it missed comes in the next one."""
        if self._silent:
            self._version = ""
            self._on_read(self._watch_read, error)
        self._silent = True
        logger.info("%s, and is replaced", error)

    def _report(self, read: Read, error: FleetError) -> None:
        # A broken watch resumes at once and may be quiet for a while: only a refusal counts.
        passes = read is self._watch_read and not isinstance(error, Terminal)
        self._on_read(read, None if passes else error)
        if isinstance(error, Terminal):
            self.tried.set()

    async def _list(self) -> None:
        selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        seen: set[str] = set()
        version = ""
        async for page in pages(self._kube, self._path, {"labelSelector": selector}):
            for body in page["items"]:
                seen.add(body["metadata"]["uid"])
                self._sink.put(body)
            version = page["metadata"]["resourceVersion"]
        for uid in self._sink.uids_in(self._namespace) - seen:
            self._sink.remove(uid)
        self._version = version
        self.synced.set()
        self.tried.set()

    async def _watch(self) -> bool:
        """Follow one stream to its end. Returns: whether it delivered an event, or ended at its time.

        Errors: those of the API.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        params = {
            "labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*SERVER_TIMEOUT_SECONDS)),  # noqa: S311 - no secret
        }
        alive = False
        async for event in self._kube.watch(self._path, params):
            if not alive:
                self._note_alive()
            alive = True
            body = event["object"]
            self._version = body["metadata"]["resourceVersion"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._sink.put(body)
                case "DELETED":
                    self._sink.remove(body["metadata"]["uid"])
                case _:
                    pass  # A bookmark carries only the version.
        if not alive and clock() - begun >= SERVER_TIMEOUT_SECONDS[0]:
            self._note_alive()
            alive = True
        return alive
