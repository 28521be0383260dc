"""Reads JSON of the API server in bounded memory.

A tenant's object takes up to 1.5 MiB in etcd. As JSON it may have 10 MiB, since one character becomes six,
and as Python objects 60 MiB. So each text is read up to a limit above that, and few large ones at a time. Of
a large object only the names and the small parts are parsed. The rest is skipped without becoming an object.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, overload

import msgspec

from fleet_operator.api import names
from fleet_operator.errors import TooLarge
from fleet_operator.ports import UNREAD_BYTES, Json

OBJECT_BYTES = 512 * 2**10
"""An object of more bytes is read by its parts. The objects of a fleet with the largest spec have half of
that."""
TEXT_BYTES = 16 * 2**20
"""A body, or a line of a watch, of more bytes is not read. No single object has as many."""
LARGE_BYTES = 2**20
LARGE_AT_ONCE = 4
"""Texts of more than `LARGE_BYTES` that are in memory at once."""
_PART_BYTES = 128 * 2**10
"""A larger part of such an object is left out."""
_NAMES = (
    *("name", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp"),
)
_OWN = (f"{names.GROUP}/", names.LABEL_MANAGED_BY)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


class Chunks(Protocol):
    """The content of a response."""

    def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come."""


class BoundedReader:
    """Reads the texts of all requests and watches of one client."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def object(self, content: Chunks) -> Json:
        """Read a body, which is one object, or one page of a list.

        Errors: TooLarge, those of the content, and ValueError for anything else than a JSON object.
        """
        text, place = bytearray(), _Place(self._large)
        try:
            async for chunk in content.iter_any():
                text += chunk
                await place.take_for(text)
            return read_object(bytes(text))
        finally:
            place.leave()

    async def lines(self, content: Chunks) -> AsyncIterator[tuple[str, Json]]:
        """Yield the type and the object of each event of a watch.

        Errors: as `object`.
        """
        text, place, searched = bytearray(), _Place(self._large), 0
        try:
            async for chunk in content.iter_any():
                text += chunk
                while (end := text.find(b"\n", searched)) >= 0:
                    event = _event_in(bytes(text[:end]))
                    del text[: end + 1]
                    place.leave()
                    searched = 0
                    yield event
                searched = len(text)
                await place.take_for(text)
            if text:
                yield _event_in(bytes(text))
        finally:
            place.leave()


class _Place:
    """The place of one text among the large ones. It has one once it is large."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._taken = False

    async def take_for(self, text: bytearray) -> None:
        """Wait for a place if the text is large. Errors: TooLarge."""
        if len(text) > TEXT_BYTES:
            raise TooLarge(f"the answer has more than {TEXT_BYTES // 2**20} MiB")
        if len(text) > LARGE_BYTES and not self._taken:
            await self._places.acquire()
            self._taken = True

    def leave(self) -> None:
        """Give the place back."""
        if self._taken:
            self._places.release()
            self._taken = False


class _Items(Sequence[Json]):
    """The objects of a large page. Each is parsed when it is taken, so that one at a time is in memory."""

    def __init__(self, items: list[msgspec.Raw]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Json: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Json]: ...

    def __getitem__(self, index: int | slice) -> Json | Sequence[Json]:
        if isinstance(index, slice):
            return _Items(self._items[index])
        return read_object(bytes(self._items[index]))

    def __iter__(self) -> Iterator[Json]:
        return (read_object(bytes(each)) for each in self._items)


def read_object(text: bytes) -> Json:
    """The object in a text; of one above `OBJECT_BYTES` its names and small parts.

    If another part than annotations and managed fields is left out, the object has its size as `UNREAD_BYTES`.

    The objects of a page are bounded one by one. A document that is not an object of the API, such as a
    schema, is read as it is.

    Errors: ValueError for anything else than a JSON object.
    """
    if len(text) <= OBJECT_BYTES:
        return _whole(text)
    try:
        parts = _PARTS.decode(text)
        if "items" in parts:
            items = _Items(_ITEMS.decode(parts["items"]))
            return {"metadata": _whole(parts["metadata"]), "items": items}
        if "metadata" not in parts:
            return _whole(text)
        return _small_parts(parts, len(text))
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"the answer is not an object: {error}") from error


def _whole(text: bytes | msgspec.Raw) -> Json:
    found = json.loads(bytes(text))
    if not isinstance(found, dict):
        raise ValueError("the answer is not an object")  # noqa: TRY004 - a broken body, as the others
    return found


def _small_parts(parts: dict[str, msgspec.Raw], size_bytes: int) -> Json:
    """The names of an object, its own labels and annotations of rlfleet, and what else is small."""
    metadata = _PARTS.decode(parts.pop("metadata"))
    kept: Json = {name: json.loads(bytes(metadata[name])) for name in _NAMES if name in metadata}
    for part in ("labels", "annotations"):
        if part in metadata:
            kept[part] = _own(_PARTS.decode(metadata[part]))
    kept |= _small(metadata, "ownerReferences", "managedFields")
    found = {"metadata": kept} | _small(parts, *parts)
    return found if parts.keys() <= found.keys() else found | {UNREAD_BYTES: size_bytes}


def _own(entries: dict[str, msgspec.Raw]) -> Json:
    own = (key for key in entries if key.startswith(_OWN))
    return _small(entries, *own)


def _small(parts: dict[str, msgspec.Raw], *wanted: str) -> dict[str, Any]:
    return {
        name: json.loads(bytes(parts[name]))
        for name in wanted
        if name in parts and memoryview(parts[name]).nbytes <= _PART_BYTES
    }


def _event_in(line: bytes) -> tuple[str, Json]:
    """Type and object of a watch event. Errors: ValueError for an invalid or incomplete line."""
    try:
        parts = _PARTS.decode(line)
        kind, found = json.loads(bytes(parts["type"])), read_object(bytes(parts["object"]))
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"a line is not a watch event: {error}") from error
    if not isinstance(kind, str):
        raise ValueError("a line is not a watch event")  # noqa: TRY004 - a broken body, as the others
    return kind, found
