"""Asks object stores for what the server needs itself: listings, configurations, and headers.

A stager asks (`object_requests`), as for the bytes of weights. So one process decides what it takes from its
variables, and the library, which reads a whole answer before it judges it, has bounds of memory and time.
"""

from __future__ import annotations

import os
import threading

from fleet_worker.checkpoint.stager_messages import (
    FoundFolders,
    FoundObject,
    FoundObjects,
    FoundRange,
    GoneError,
    ListFolders,
    ListObjects,
    Message,
    ReadRange,
    Refused,
    StoreRequest,
)
from fleet_worker.checkpoint.stagers import Stager, Stagers
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_SECONDS = 55.0
"""For one question. It ends before the store counts as silent (`store_threads`), since this reason says more."""
_AT_ONCE = threading.BoundedSemaphore(4)
_RETRY_SECONDS = 30.0
_stagers = Stagers()
"""Not those of the worker, which hold memory for versions."""


def objects_below(uri: str) -> list[FoundObject]:
    """Return the objects below a prefix. Errors: see `object_requests.answer_of`."""
    answer, _ = ask(ListObjects(uri=uri))
    return answer.objects if isinstance(answer, FoundObjects) else []


def folders_in(uri: str) -> list[str]:
    """Return the names of the folders below a prefix, sorted. Errors: see `object_requests.answer_of`."""
    answer, _ = ask(ListFolders(uri=uri))
    return answer.names if isinstance(answer, FoundFolders) else []


def fetched(asked: ReadRange) -> bytearray:
    """Return a part of an object. Errors: see `object_requests.answer_of`."""
    _, content = ask(asked)
    return content or bytearray()


def ask(request: StoreRequest) -> tuple[Message, bytearray | None]:
    """Ask in a stager. Returns: the answer, and the bytes of a range. Errors: see `object_requests.answer_of`."""
    with _AT_ONCE:
        try:
            stager = _stagers.take()
        except OSError as error:
            raise _unread(request, f"cannot be started: {error.strerror}") from error
        late = threading.Event()
        timer = threading.Timer(_SECONDS, _end, (stager, late))
        timer.start()
        try:
            answer, received = stager.ask(request, [], lambda: None)
        except GoneError as gone:
            if late.is_set():
                raise _without_end(request) from gone
            raise _unread(request, str(stager.why_it_ended())) from gone
        finally:
            timer.cancel()
        _stagers.give_back(stager)
    content = None
    for each in received:
        with os.fdopen(each, "rb") as file:
            content = bytearray(file.read())
    if isinstance(answer, Refused):
        raise answer.refusal
    if isinstance(answer, FoundRange) != isinstance(request, ReadRange):
        raise _unread(request, "has answered another question")
    return answer, content


def _end(stager: Stager, late: threading.Event) -> None:
    late.set()
    stager.end()


def _without_end(request: StoreRequest) -> Refusal:
    return Refusal(
        Reason.SOURCE_UNREADABLE,
        f"the store has not ended its answer about {request.uri} within {_SECONDS:g} s; check its endpoint, and save"
        " each version under a prefix of its own",
        retry_after_seconds=_RETRY_SECONDS,
    )


def _unread(request: StoreRequest, how: str) -> Refusal:
    return Refusal(
        Reason.SOURCE_UNREADABLE,
        f"the process that reads {request.uri} {how}",
        retry_after_seconds=_RETRY_SECONDS,
    )
