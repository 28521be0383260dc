"""`GET /v1/rl/events`: every transition of the fleet's WeightVersion, as server-sent events.

The id of an event is the resourceVersion of the object. So any replica can continue after an event that
another replica has sent, as long as the API server has the changes since then.

Source: HTML Living Standard, "Server-sent events"; Kubernetes API concepts, "Resource versions".
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from fleet_api.calls import Call
from fleet_api.lifecycle import Lifecycle
from fleet_api.limits import Slots
from fleet_api.loop_time import measured
from fleet_api.ports import Cluster
from fleet_api.problems import Problem, invalid
from fleet_api.route import EVENT_STREAM
from fleet_api.state import weights_of
from rlfleet.errors import RlfleetError
from rlfleet.follow import Event, follow
from rlfleet.resources import WeightVersion

logger = logging.getLogger(__name__)

HEADER = "Last-Event-ID"
MEANING = "Id of the last event that the client has; the stream continues after it."
HEARTBEAT_SECONDS = 10.0
STREAM_SECONDS = 300.0
"""Longest time of one stream. The next one needs a valid token again, and clients reconnect by themselves."""
WRITE_SECONDS = 30.0
"""A client that reads nothing for this time is disconnected."""
RETRY_MILLISECONDS = 1000
_ID = re.compile(r"[0-9]{1,20}")


class Events:
    """The handler. `slots`: limit the number of open streams."""

    def __init__(
        self,
        cluster: Cluster,
        lifecycle: Lifecycle,
        slots: Slots,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._lifecycle = lifecycle
        self._slots = slots
        self._heartbeat_seconds = heartbeat_seconds

    async def stream(self, call: Call) -> web.StreamResponse:
        """Transitions of the fleet's weights, as server-sent events."""
        seen = call.present_weights
        since = _since(call.request.headers.get(HEADER), seen)
        with self._slots.slot(call.fleet.namespace):
            # A proxy that collects the reply would hold the events back.
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM} | headers)
            await response.prepare(call.request)
            try:
                await self._lifecycle.until_ending(
                    self._send(response, call.fleet.namespace, seen, since)
                )
            except Problem:
                pass  # the process ends, and the client continues at another replica
            except RlfleetError as error:
                # The status is sent already, so the end of the stream is all that a client sees. Some of these
                # are a ConnectionError, too.
                logger.warning("a stream of events has ended: %s", error)
            except (ConnectionError, TimeoutError):
                pass  # the client has left
        return response

    async def _send(
        self, response: web.StreamResponse, namespace: str, seen: WeightVersion, since: str
    ) -> None:
        """Send events until the stream's time is over. `since`: empty for the present state first."""
        objects = self._cluster.of(namespace)
        await _write(response, f"retry: {RETRY_MILLISECONDS}\n\n")
        last: dict[str, Any] | None = None
        if since:
            moved = seen.metadata.model_copy(update={"resource_version": since})
            seen = seen.model_copy(update={"metadata": moved})
        else:
            document = weights_of(seen)
            last = _visible(document)
            await _write(response, _text("weights", seen, document))
        deadline = objects.monotonic() + STREAM_SECONDS
        async with aclosing(
            follow(objects, seen.metadata.name, seen=seen, deadline=deadline)
        ) as changes:
            async for change in self._or_heartbeats(changes):
                if change is None:
                    await _write(response, ": no change\n\n")
                    continue
                document = weights_of(change.weights)
                if change.type == "DELETED":
                    # The next stream is of the WeightVersion that steers the fleet then.
                    await _write(response, _text("deleted", change.weights, document))
                    return
                if _visible(document) != last:
                    last = _visible(document)
                    await _write(response, _text("weights", change.weights, document))

    async def _or_heartbeats(self, changes: AsyncGenerator[Event]) -> AsyncGenerator[Event | None]:
        """The changes, and None each time that there was none for a while."""

        async def following() -> Event | None:
            return await anext(changes, None)

        while True:
            coming = asyncio.ensure_future(measured(following()))
            try:
                while not (await asyncio.wait({coming}, timeout=self._heartbeat_seconds))[0]:
                    yield None
            finally:
                if not coming.done():
                    coming.cancel()
                    await asyncio.wait({coming})
            if (change := coming.result()) is None:
                return
            yield change


def _since(last: str | None, seen: WeightVersion) -> str:
    """The resourceVersion to continue from; empty to begin with the present state. Errors: Problem 400."""
    if not last:
        return ""
    if not _ID.fullmatch(last):
        raise invalid(f"{HEADER} is not the id of an event of this stream; leave it out")
    # Larger than the present one: an id from before the API server's store was restored.
    return "" if int(last) > int(seen.metadata.resource_version) else last


def _visible(document: dict[str, Any]) -> dict[str, Any]:
    """The part of a document that a transition changes."""
    return {key: value for key, value in document.items() if key != "resourceVersion"}


def _text(name: str, weights: WeightVersion, document: dict[str, Any]) -> str:
    data = json.dumps(document, separators=(",", ":"))
    return f"id: {weights.metadata.resource_version}\nevent: {name}\ndata: {data}\n\n"


async def _write(response: web.StreamResponse, text: str) -> None:
    """Send text to the client. Errors: ConnectionError, TimeoutError."""
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(text.encode())
