"""Requests to object stores, as a stager makes them. The server asks by `store_calls`, and has no part of the library.

A store is untrusted. A stager asks only the endpoint of the fleet, and demands each range of an object with the ETag
that the listing had. So all bytes of a file are those of one object, and an object that is replaced while it is read
is a refusal. The stager counts what comes, and each request has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import obstore

from fleet_worker.checkpoint.stager_messages import (
    FoundFolders,
    FoundObject,
    FoundObjects,
    FoundRange,
    ListFolders,
    ListObjects,
    ReadRange,
    StoreAnswer,
    StoreRequest,
)
from fleet_worker.errors import Refusal
from fleet_worker.object_errors import replaced, store_errors
from fleet_worker.object_stores import opened_store, quoted
from fleet_worker.protocol import Reason

_MOST_OBJECTS = 10_000
"""In a directory, with what is below it."""
_MOST_BESIDE = 100_000
"""In a folder of versions."""
_PAGE = 1000
_CHUNK_BYTES = 1024 * 1024


def answer_of(request: StoreRequest) -> tuple[StoreAnswer, bytearray | None]:
    """Ask the store. Returns: the answer, and the bytes of a range.

    Errors:
        Refusal: `CheckpointChanged` for an object that is another one by now, `CheckpointMalformed` for too many
            objects, `SourceNotFound`, `SourceUnreadable`.
    """
    match request:
        case ListObjects():
            return FoundObjects(objects=_listed(request.uri)), None
        case ListFolders():
            return FoundFolders(names=_folders(request.uri)), None
        case ReadRange():
            return FoundRange(), fetched(request)


def fetched(asked: ReadRange) -> bytearray:
    """Return a part of an object. Errors: see `answer_of`."""
    content = bytearray(asked.end - asked.begin)
    if not content:
        return content
    name, done = asked.uri.rpartition("/")[2], 0
    with store_errors(asked.uri):
        store, key = opened_store(asked.uri)
        wanted: Any = {"if_match": asked.etag, "range": (asked.begin, asked.end)}
        answer = obstore.get(store, key, options=wanted)
        if quoted(answer.meta["e_tag"] or "") != asked.etag or answer.meta["size"] != asked.size:
            raise replaced(name)
        for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
            if done + len(chunk) > len(content):
                raise replaced(name)
            content[done : done + len(chunk)] = memoryview(chunk)
            done += len(chunk)
    if done < len(content):
        raise Refusal(
            Reason.SOURCE_UNREADABLE,
            f"the store ended {name} after {done} of {len(content)} bytes of a range",
        )
    return content


def _listed(uri: str) -> list[FoundObject]:
    """Return the objects directly below a prefix; one that a page repeats counts once."""
    found = dict[str, FoundObject]()
    for path, each in _pages(uri, _MOST_OBJECTS, Reason.CHECKPOINT_MALFORMED):
        name = path.removeprefix("/")
        if not path.startswith("/") or not name:
            continue  # the empty object by which a browser shows a folder
        if not each["e_tag"]:
            raise Refusal(
                Reason.SOURCE_UNREADABLE,
                "the store lists objects without ETags, so that nothing would show that one was replaced;"
                " use a store that has them",
            )
        found[name] = FoundObject(
            name=name,
            size=each["size"],
            etag=quoted(each["e_tag"]),
            modified_ns=int(each["last_modified"].timestamp() * 1e9),
        )
    return [*found.values()]


def _folders(uri: str) -> list[str]:
    """Return the names of the folders below a prefix, sorted.

    It counts objects: the library's listing of folders has no limit.
    """
    found = set[str]()
    for path, _ in _pages(uri, _MOST_BESIDE, Reason.SOURCE_UNREADABLE):
        name, slash, _ = path.lstrip("/").partition("/")
        if slash:
            found.add(name)
    return sorted(found)


def _pages(uri: str, most: int, reason: Reason) -> Iterator[tuple[str, Any]]:
    """Yield what is listed below a prefix: the path behind it, and what the listing has about the object."""
    count = 0
    with store_errors(uri):
        store, key = opened_store(uri)
        for page in obstore.list(store, key or None, chunk_size=_PAGE):
            count += len(page)
            if count > most:  # also if they have all one name
                raise Refusal(
                    reason,
                    f"there are more than {most} objects below {uri}; save each version under a prefix of its own",
                )
            for each in page:
                yield each["path"][len(key) :], each
