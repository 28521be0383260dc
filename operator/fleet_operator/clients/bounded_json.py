"""Reads JSON of the API server in bounded memory.

A tenant's object takes up to 1.5 MiB in etcd. As JSON it may have 10 MiB, since one character becomes six,
and as Python objects 60 MiB. So each text is read up to a limit above that, and few large ones at a time. Of
a large object only the names and the small parts are parsed. The rest is skipped without becoming an object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, overload

import msgspec

from fleet_operator.errors import TooLarge
from fleet_operator.ports import SPEC_BYTES, UNREAD_BYTES, Json
from rlfleet_resources import names

OBJECT_BYTES = 512 * 2**10
"""An object of more bytes is read by its parts. The objects of a fleet with the largest spec have half of
that. A status, with the pins of versions, may have as many."""
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
CLOSED = "closed"
"""Key of an object's text (`read_closed`)."""
RECORD_BYTES = 32 * 2**10
"""Longer managed fields are left out: the only part of a pod or a Service that has no type. 36,000 fields, which no
one has to own, take 12 ms."""
NESTING = 12_000
"""Levels of a text that can be skipped. The API server takes 10,000, and Python parses 1,000 at most."""
_ESCAPES = (b"\\u003c", b"\\u003e", b"\\u0026")
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
T = TypeVar("T")


class _Most(NamedTuple):
    """The largest spec, and the largest other part, of an object that is read by its parts."""

    spec: int
    part: int


_OBJECT_PARTS = _Most(_PART_BYTES, _PART_BYTES)
_RESOURCE_PARTS = _Most(SPEC_BYTES, OBJECT_BYTES)


class Chunks(Protocol):
    """The content of a response."""

    def iter_any(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come."""


class BoundedReader:
    """Reads the texts of all requests and watches of one client. `read`: the object, or the page, of a text."""

    def __init__(self, read: Callable[[bytes], Json] | None = None) -> None:
        self._read = read or read_object
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
            return self._read(bytes(text))
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
                    event = _event_in(bytes(text[:end]), self._read)
                    del text[: end + 1]
                    place.leave()
                    searched = 0
                    yield event
                searched = len(text)
                await place.take_for(text)
            if text:
                yield _event_in(bytes(text), self._read)
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
    """The objects of a page. Each is parsed when it is taken, so that one at a time is in memory."""

    def __init__(self, items: list[msgspec.Raw], read: Callable[[bytes], Json]) -> None:
        self._items = items
        self._read = read

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Json: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Json]: ...

    def __getitem__(self, index: int | slice) -> Json | Sequence[Json]:
        if isinstance(index, slice):
            return _Items(self._items[index], self._read)
        return self._read(bytes(self._items[index]))

    def __iter__(self) -> Iterator[Json]:
        return (self._read(bytes(each)) for each in self._items)


def read_object(text: bytes) -> Json:
    """The object in a text; of one above `OBJECT_BYTES` its names and small parts.

    If another part than annotations and managed fields is left out, the object has its size as `UNREAD_BYTES`.

    The objects of a page are bounded one by one. A document that is not an object of the API, such as a
    schema, is read as it is. An object that is nested too deeply for Python is read as a large one.

    Errors: ValueError for anything else than a JSON object.
    """
    if SPEC_BYTES < len(text) <= OBJECT_BYTES:
        text = _without_long_record(text)
    return _bounded(text, OBJECT_BYTES, _OBJECT_PARTS, read_object)


def read_resource(text: bytes) -> Json:
    """The same for InferenceFleets and WeightVersions, whose specs have at most `SPEC_BYTES`."""
    return _bounded(text, SPEC_BYTES, _RESOURCE_PARTS, read_resource)


def read_message(text: bytes) -> Json:
    """The same for a body, and for a line of a watch, which has such an object as its `object`."""
    with contextlib.suppress(msgspec.MsgspecError):
        parts = _decode(_PARTS, text)
        if parts.keys() == {"type", "object"}:
            kind, found = _event_in(text, read_resource)
            return {"type": kind, "object": found}
    return read_resource(text)


def _bounded(text: bytes, most: int, parts_of: _Most, each: Callable[[bytes], Json]) -> Json:
    """`most`: of an object that is parsed whole. `each`: reads an object of a page."""
    with contextlib.suppress(RecursionError):
        if len(text) <= most:
            return _whole(text)
    try:
        parts = _decode(_PARTS, text)
        if "items" in parts:
            items = _Items(_decode(_ITEMS, parts["items"]), each)
            return {"metadata": _whole(parts["metadata"]), "items": items}
        if "metadata" not in parts:
            return _whole(text)
        return _small_parts(parts, len(text), parts_of)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"the answer is not an object: {error}") from error


def _without_long_record(text: bytes) -> bytes:
    with contextlib.suppress(msgspec.MsgspecError):
        parts = _decode(_PARTS, text)
        metadata = _decode(_PARTS, parts.get("metadata", b"{}"))
        if len(bytes(metadata.pop("managedFields", b""))) > RECORD_BYTES:
            parts["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
            return msgspec.json.encode(parts)
    return text


def read_closed(text: bytes) -> Json:
    """The object in a text as its names, and the whole of it as a text for `opened`, which is bounded as by
    `read_resource`. So are the objects of a page. A refusal, which has no uid, is read as it is.

    Errors: as `read_object`.
    """
    try:
        parts = _decode(_PARTS, text)
        if "items" in parts:
            items = [read_closed(bytes(each)) for each in _decode(_ITEMS, parts.pop("items"))]
            return _small(parts, *parts) | {"items": items}
        metadata = _decode(_PARTS, parts.get("metadata", b"{}"))
        if "uid" not in metadata:
            return _whole(text)
        head = _small(parts, "apiVersion", "kind") | {"metadata": _small(metadata, *_NAMES)}
        if len(text) > SPEC_BYTES:
            text = json.dumps(_small_parts(parts, len(text), _RESOURCE_PARTS)).encode()
        return head | {CLOSED: text.decode()}
    except msgspec.MsgspecError as error:
        raise ValueError(f"the answer is not an object: {error}") from error


def opened(body: Mapping[str, Any]) -> Json:
    """The object of `read_closed`, without the parts that it has left out."""
    text = body[CLOSED].encode()
    return _bounded(text, len(text), _RESOURCE_PARTS, read_object)


def _decode(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw) -> T:
    """Decode the parts of a text, however deeply they are nested. Errors: MsgspecError."""
    try:
        return decoder.decode(text)
    except RecursionError:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(NESTING)
        try:
            return decoder.decode(text)
        finally:
            sys.setrecursionlimit(before)


def _whole(text: bytes | msgspec.Raw) -> Json:
    found = json.loads(bytes(text))
    if not isinstance(found, dict):
        raise ValueError("the answer is not an object")  # noqa: TRY004 - a broken body, as the others
    return found


def _small_parts(parts: dict[str, msgspec.Raw], size_bytes: int, most: _Most) -> Json:
    """The names of an object, its own labels and annotations of rlfleet, and each part that is not too large."""
    metadata = _decode(_PARTS, parts.pop("metadata"))
    kept: Json = {name: json.loads(bytes(metadata[name])) for name in _NAMES if name in metadata}
    for part in ("labels", "annotations"):
        if part in metadata:
            kept[part] = _own(_decode(_PARTS, metadata[part]))
    kept |= _small(metadata, "ownerReferences", "managedFields")
    others = parts.keys() - {"spec"}
    found = {"metadata": kept} | _small(parts, *others, most=most.part)
    found |= _small(parts, "spec", most=most.spec)
    return found if parts.keys() <= found.keys() else found | {UNREAD_BYTES: size_bytes}


def _own(entries: dict[str, msgspec.Raw]) -> Json:
    own = (key for key in entries if key.startswith(_OWN))
    return _small(entries, *own)


def _small(parts: dict[str, msgspec.Raw], *wanted: str, most: int = _PART_BYTES) -> dict[str, Any]:
    """These parts, without those that are too large or nested too deeply."""
    found = {}
    for name in wanted:
        if name in parts and _compact_bytes(text := bytes(parts[name])) <= most:
            with contextlib.suppress(RecursionError):
                found[name] = json.loads(text)
    return found


def _compact_bytes(text: bytes) -> int:
    """The size of a text of the API server without its escapes of six characters for one."""
    return len(text) - sum(5 * text.count(escape) for escape in _ESCAPES)


def _event_in(line: bytes, read: Callable[[bytes], Json]) -> tuple[str, Json]:
    """Type and object of a watch event. Errors: ValueError for an invalid or incomplete line."""
    try:
        parts = _decode(_PARTS, line)
        kind, found = json.loads(bytes(parts["type"])), read(bytes(parts["object"]))
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"a line is not a watch event: {error}") from error
    if not isinstance(kind, str):
        raise ValueError("a line is not a watch event")  # noqa: TRY004 - a broken body, as the others
    return kind, found
