"""Lists and watches the objects of one kind that carry rlfleet's label, in one namespace or in all.

A list comes in pages. A watch uses bookmarks, so that a broken stream resumes at its resourceVersion. On
410 the objects are listed again.

The server ends each stream after less than half a minute. A quiet one may have had no bookmark until then: the
server sends none without a change of the kind. So a stream that delivers nothing for longer, not even its
end, is broken, for example because a proxy on the way has lost it, and is replaced. If the next one is silent,
too, the objects are listed each time, and the read counts as failing. So it is after streams that broke
several times at one resourceVersion: what comes next there cannot be read.

An object that is too large is taken with its names alone, and one that its taker cannot take is left out.
Both are reported (`unread_objects`), and the reader continues behind them.

Streams that broke together return one by one. Each waits for a random time that doubles with every
failure, and at least as long as the server asks for. Streams that began together end at different times.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Protocol

from fleet_operator.errors import (
    Broken,
    Conflict,
    FleetError,
    NotFound,
    ObjectUnread,
    Retryable,
    Silent,
    Terminal,
    TooLarge,
)
from fleet_operator.ports import UNREAD_BYTES, Json, Kube
from fleet_operator.runtime.backoff import Backoff
from fleet_operator.runtime.reads import OnRead, Read, collection, pages
from rlfleet_resources import names

logger = logging.getLogger(__name__)

SERVER_TIMEOUT_SECONDS = (15, 25)
"""The server ends a stream after a time between these, less than the silence after which it counts as
broken."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.4, 10.0
BREAKS_AT_MOST = 3
"""Streams that broke at one resourceVersion before the objects are listed again."""


class Sink(Protocol):
    """Takes the objects of a `ListWatch`."""

    def put(self, body: Json) -> None:
        """Take in an object that was listed, added or modified."""

    def remove(self, uid: str) -> None:
        """Forget an object that is gone."""

    def uids_in(self, namespace: str | None) -> set[str]:
        """Uids of what is known of one namespace, or of all."""


class OnObject(Protocol):
    """Called with each object that was taken in or is gone."""

    def note(self, plural: str, body: Json, error: Exception | None) -> None:
        """Note whether an object could be read and taken in (None)."""

    def forget(self, uid: str) -> None:
        """Note that an object is gone."""

    def uids_of(self, plural: str, namespace: str | None) -> set[str]:
        """Uids of the noted objects of one kind that could not be read."""


class ListWatch:
    """List and watch of the objects that carry rlfleet's label.

    `root`: `/api/v1`, or `/apis/GROUP/VERSION`. `namespace`: None for all.
    """

    def __init__(
        self,
        kube: Kube,
        root: str,
        plural: str,
        namespace: str | None,
        sink: Sink,
        on_read: OnRead,
        on_object: OnObject,
    ) -> None:
        self._path = collection(root, plural, namespace)
        self._list_read = Read("list", plural, namespace)
        self._watch_read = Read("watch", plural, namespace)
        self._on_read = on_read
        self._on_object = on_object
        self._plural = plural
        self._namespace = namespace
        self._kube = kube
        self._sink = sink
        self._version = ""
        self._silent = False
        self._breaks = 0
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        """Set when the first list was read or refused. It stays unset while the server is not ready."""

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            message, asked_seconds = "the stream ended before its first event", None
            level = logging.WARNING
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
            except (Broken, TooLarge) as error:
                message = str(error)
                self._note_break(read, error)
                if self._version and self._breaks == 1:
                    level = logging.DEBUG  # it worked, and resumes where it broke
            except FleetError as error:
                message = str(error)
                asked_seconds = error.after_seconds if isinstance(error, Retryable) else None
                self._report(read, error)
            except Exception as error:  # other streams do not depend on this one
                self._version, message = "", type(error).__name__
                logger.exception("%s failed and is begun again", read)
                self._on_read(read, error)
            delay = self._backoff.next_seconds(asked_seconds=asked_seconds)
            logger.log(
                level, "watch of %s: %s; next attempt in %.1f s", self._plural, message, delay
            )
            await asyncio.sleep(delay)

    def _note_alive(self) -> None:
        """Note that a stream works."""
        self._on_read(self._watch_read, None)
        self._backoff.reset()
        self._silent = False
        self._breaks = 0

    def _note_break(self, read: Read, error: FleetError) -> None:
        """Note that a stream broke. The next one would begin before the same event. So after several, the
        objects are listed each time, until a stream works.
        """
        self._breaks += 1
        if isinstance(error, TooLarge) or self._breaks >= BREAKS_AT_MOST:
            self._version = ""
            self._on_read(read, error)
        else:
            self._report(read, error)

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
                self._put(body)
            version = page["metadata"]["resourceVersion"]
        known = self._sink.uids_in(self._namespace)
        for uid in (known | self._on_object.uids_of(self._plural, self._namespace)) - seen:
            self._remove(uid)
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
                    self._put(body)
                case "DELETED":
                    self._remove(body["metadata"]["uid"])
                case _:
                    pass  # A bookmark carries only the version.
        if not alive and clock() - begun >= SERVER_TIMEOUT_SECONDS[0]:
            self._note_alive()
            alive = True
        return alive

    def _put(self, body: Json) -> None:
        """Pass an object on. One that cannot be taken must not hold back those behind it."""
        error: Exception | None = _too_large(self._plural, body)
        try:
            self._sink.put(body)
        except Exception as defect:  # noqa: BLE001 - noted; the objects behind it do not depend on it
            error = error or defect
        self._on_object.note(self._plural, body, error)

    def _remove(self, uid: str) -> None:
        self._sink.remove(uid)
        self._on_object.forget(uid)


def _too_large(plural: str, body: Json) -> ObjectUnread | None:
    """The error of an object of which parts were left out; None for any other one."""
    size_bytes = body.get(UNREAD_BYTES)
    if size_bytes is None:
        return None
    metadata = body["metadata"]
    return ObjectUnread(
        f"{plural} {metadata['name']} in namespace {metadata['namespace']} has {size_bytes / 2**10:,.0f} KiB, "
        "more than the operator reads. Its large parts are not known. Make it smaller or delete it"
    )
