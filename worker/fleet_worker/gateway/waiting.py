"""The wait of a request that arrives during a pause."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet_worker.http.asgi import (
    ClientGoneError,
    Receive,
    Scope,
    WireError,
    ended_without_tokens,
    header_of,
)
from fleet_worker.lifecycle.holding import Outcome
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import Phase
from fleet_worker.provenance.changing import Json


def note_arrival(worker: Worker, scope: Scope, content: Json | None) -> None:
    """A new request. An earlier abort of another request with its id says nothing about it."""
    if worker.held.remembers_aborts:
        worker.held.forget(_ids_of(scope, content))


async def wait_out_pause(
    worker: Worker, scope: Scope, content: Json | None, receive: Receive
) -> bool:
    """Wait until the worker generates, or its latch is closed.

    Returns:
        Whether the request may pass a closed latch: it came before, and a drain lets it finish.

    Errors:
        WireError: 429, it was ended meanwhile; 400, its client has aborted it.
        ClientGoneError: the client closed the connection.
    """
    while worker.holds:
        match await _outcome(worker, scope, content, receive):
            case Outcome.ABORTED:
                message = "the request was aborted by its id before its first token"
                raise WireError(400, message, kind="RequestAbortedError")
            case Outcome.TURNED_AWAY if worker.is_open:
                raise ended_without_tokens()
            case Outcome.LET_IN if worker.phase is Phase.DRAINING:
                return True
    return False


async def _outcome(worker: Worker, scope: Scope, content: Json | None, receive: Receive) -> Outcome:
    # After its body a client sends nothing more, so the next message says that it has gone.
    gone = asyncio.ensure_future(receive())
    try:
        with worker.held.place(_ids_of(scope, content)) as end:
            either: set[asyncio.Future[Any]] = {gone, end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                raise ClientGoneError
            return end.result()
    finally:
        gone.cancel()


def _ids_of(scope: Scope, content: Json | None) -> set[str]:
    """The ids by which a client may abort the request."""
    found = header_of(scope["headers"], b"x-request-id"), (content or {}).get("request_id")
    return {each for each in found if isinstance(each, str)}


def aborted_in(content: Json | None) -> list[str]:
    """Return the ids that a client aborts, by the body of its call."""
    ids = (content or {}).get("request_ids")
    return [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []
