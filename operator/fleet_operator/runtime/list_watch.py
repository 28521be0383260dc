"""Follows our objects of one kind, in one namespace or in all: list, then watch, whatever happens.

A list is taken in chunks; a watch goes on from its resourceVersion with bookmarks, so that a broken
stream resumes; 410 lists anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fleet_operator.api import names
from fleet_operator.errors import Conflict, FleetError, NotFound, Terminal
from fleet_operator.ports import Json, Kube

logger = logging.getLogger(__name__)

CHUNK = 500
SERVER_TIMEOUT_SECONDS = 300
RETRY_SECONDS = (0.2, 1.0, 2.0, 5.0)
PROBE_SECONDS = 2.0


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
"""Takes how a read ended: with an error, or well (None)."""


async def probe(
    kube: Kube, root: str, plural: str, namespace: str | None, on_read: OnRead
) -> list[FleetError]:
    """Try whether a resource can be listed and watched. `root`: as of `ListWatch`.

    Returns: the errors; none if both are allowed.
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
        async with asyncio.timeout(PROBE_SECONDS):
            async for _ in kube.watch(path, params):
                pass  # A watch that is refused brings nothing.
    except (Conflict, TimeoutError):
        pass  # It was not refused.
    except FleetError as error:
        on_read(watch, error)
        return [error]
    on_read(watch, None)
    return []


def collection(root: str, plural: str, namespace: str | None) -> str:
    """The path of a resource in one namespace, or in all (None)."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural}"


class Sink(Protocol):
    """Where it goes."""

    def put(self, body: Json) -> None:
        """Take in an object that was listed, added or modified."""

    def remove(self, uid: str) -> None:
        """Forget an object that is gone."""

    def uids_in(self, namespace: str | None) -> set[str]:
        """Uids of what is known of one namespace, or of all."""


class ListWatch:
    """List and watch of what carries our label.

    Args:
        kube: The API.
        root: `/api/v1`, or `/apis/GROUP/VERSION`.
        plural: The resource.
        namespace: None for all.
        sink: Where objects go.
        on_read: Takes how each list and watch ends.
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
        self._failures = 0
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        """Set when the first list was read, or refused. A server that is not ready yet is waited for."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            told = "it ended before anything came"
            read = self._watch_read if self._version else self._list_read
            try:
                if not self._version:
                    await self._list()
                    self._on_read(self._list_read, None)
                    read = self._watch_read
                if await self._watch():
                    continue
                self._on_read(self._watch_read, None)
            except (Conflict, NotFound) as error:
                self._version = ""  # Too old to go on from: list anew.
                told = str(error)
                self._note(read, error)
            except FleetError as error:
                told = str(error)
                self._note(read, error)
            delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
            self._failures += 1
            logger.warning("watch of %s: %s; again in %.1f s", self._plural, told, delay)
            await asyncio.sleep(delay)

    def _note(self, read: Read, error: FleetError) -> None:
        # A watch that broke goes on at once and may be quiet for a minute: only a refusal counts.
        passes = read is self._watch_read and not isinstance(error, Terminal)
        self._on_read(read, None if passes else error)
        if isinstance(error, Terminal):
            self.tried.set()

    async def _list(self) -> None:
        selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        params = {"labelSelector": selector, "limit": str(CHUNK)}
        seen: set[str] = set()
        while True:
            page = await self._kube.get(self._path, params)
            # Each page goes to the sink as it comes: 10,000 pods are 276 MiB of raw objects.
            for body in page["items"]:
                seen.add(body["metadata"]["uid"])
                self._sink.put(body)
            follow = page["metadata"].get("continue")
            if not follow:
                break
            params["continue"] = follow
        for uid in self._sink.uids_in(self._namespace) - seen:
            self._sink.remove(uid)
        self._version = page["metadata"]["resourceVersion"]
        self.synced.set()
        self.tried.set()

    async def _watch(self) -> bool:
        """Follow one stream to its end. Returns: whether it brought anything."""
        params = {
            "labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(SERVER_TIMEOUT_SECONDS),
        }
        alive = False
        async for event in self._kube.watch(self._path, params):
            if not alive:
                self._on_read(self._watch_read, None)
            alive, self._failures = True, 0
            body = event["object"]
            self._version = body["metadata"]["resourceVersion"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._sink.put(body)
                case "DELETED":
                    self._sink.remove(body["metadata"]["uid"])
                case _:
                    pass  # A bookmark carries only the version.
        return alive
