"""Reads and changes one fleet over the RL API, blocking and for asyncio.

Source: docs/reference/rl-api.md. No request waits for the outcome of a change, since proxies end long
requests. The client follows the stream of events instead, as it follows a watch of the Kubernetes API. If
a proxy holds the stream back, it polls the state. Each change has an `Idempotency-Key`, so a repetition
after a lost answer changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import httpx

from rlfleet.arguments import check_fleet
from rlfleet.errors import NotFound, RlfleetError, Superseded
from rlfleet.follow import patiently
from rlfleet.ports import Change, Changes, GoneError, Json, Kind
from rlfleet.resources import WeightVersion
from rlfleet.rl_access import RlAccess
from rlfleet.rl_answers import MEDIA_TYPE, Events, NoStreamError, document_of, state_of, weights_of
from rlfleet.sending import (
    CONNECT_SECONDS,
    AsyncPlace,
    BlockingPlace,
    Sending,
    async_http,
    blocking_http,
    broken,
)
from rlfleet.sources import Publication, first, in_words, label_of

POLL_SECONDS = 0.5
"""Time between two polls of the state: the RL API permits 50 requests a second to each address."""
_MIN_STREAM_SECONDS = 1.0
"""For a shorter time the client polls instead of opening a stream."""
_ABSENT = "absent"
"""The version of a state without a WeightVersion."""


class _RlApi(Sending):
    """The common part of both ways of sending. It implements `Place` and `Changes`.

    It ignores the names of objects in arguments: they mean the one fleet and its WeightVersion.
    """

    def __init__(self, access: RlAccess, fleet: str) -> None:
        self._access = access
        self._fleet = fleet
        self._streams = True
        """Whether streams of events reach this client."""
        names = "/".join(quote(name, safe="") for name in (access.namespace, fleet))
        self._root = f"{access.url}/fleets/{names}/v1/rl/"

    @property
    def namespace(self) -> str:
        """See `Place`, also for the methods below."""
        return self._access.namespace

    def changes(self, name: str) -> Changes:  # noqa: ARG002 - see the class
        """Changes, made by requests of their own."""
        return self

    async def get(self, kind: Kind, name: str) -> Json:  # noqa: ARG002 - see Place
        """GET state."""
        fleet, weights = await self._state()
        if kind is Kind.FLEETS:
            return fleet
        if weights is None:
            raise NotFound(
                f"no WeightVersion in namespace {self.namespace!r} names fleet {self._fleet!r}; "
                "create one with kubectl, since the RL API creates none"
            )
        return weights

    async def list(self, kind: Kind, name: str) -> tuple[Json | None, str]:  # noqa: ARG002 - see Place
        """GET state."""
        _, weights = await self._state()
        if weights is None:
            return None, _ABSENT
        return weights, weights["metadata"]["resourceVersion"]

    async def all(self, kind: Kind) -> Sequence[Json]:
        """GET state."""
        fleet, weights = await self._state()
        found = fleet if kind is Kind.FLEETS else weights
        return [] if found is None else [found]

    async def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        """GET events. Errors: GoneError if the object was deleted or recreated.

        No read lasts longer than half of the time that is left, so none lasts beyond the end.
        """
        end, since = self.monotonic() + seconds, resource_version
        while self._streams and since != _ABSENT:
            left = end - self.monotonic()
            if left < _MIN_STREAM_SECONDS:
                break
            received = False
            try:
                request = self._event_request(since, left / 2)
                async with aclosing(self._chunks(request, _check_stream)) as chunks:
                    events = Events(self.namespace, self._fleet)
                    async for chunk in chunks:
                        received = True
                        for change in events.of(chunk):
                            since = change.resource_version
                            yield change
                        if self.monotonic() > end - left / 2:
                            break
                    else:
                        return  # the next watch continues after the last event
            except NoStreamError as error:
                self._streams = error.status not in {200, 404}
                break
            except httpx.ReadTimeout:
                # The RL API sends a line at once. A proxy that collects the reply holds it back.
                self._streams = received
            except httpx.TransportError as error:
                raise self._broken(error) from error
        async with aclosing(self._poll(kind, name, since, end)) as changes:
            async for change in changes:
                yield change

    async def _poll(self, kind: Kind, name: str, since: str, end: float) -> AsyncGenerator[Change]:
        """GET state, repeatedly. Errors: as for `watch`."""
        uid = ""
        while (left := end - self.monotonic()) > 0:
            await self.sleep(min(POLL_SECONDS, left))
            found, now = await self.list(kind, name)
            if now == since == _ABSENT:
                continue
            if found is None or since == _ABSENT or uid not in {"", found["metadata"]["uid"]}:
                raise GoneError("the WeightVersion was created or deleted")
            uid = found["metadata"]["uid"]
            if now != since:
                since = now
                yield Change("MODIFIED", found)

    async def publish(self, asked: Publication, deadline: float | None) -> Json:
        """PUT weights. It creates no object."""
        check_fleet(asked.version, asked.create_for, self._fleet)
        body = first(asked) | {"wait": False}
        body |= {"traceparent": asked.traceparent} if asked.traceparent is not None else {}
        body |= {"sameFiles": True} if asked.same_files else {}
        return await self._change("PUT", "weights", body, deadline)

    async def rollback(
        self, version: str, path: str | None, deadline: float | None, *, digest: str | None = None
    ) -> Json:
        """POST rollback."""
        named = first(Publication(version=version, path=path, digest=digest))
        body = named | {"wait": False}
        return await self._change("POST", "rollback", body, deadline)

    async def undo(self, deadline: float | None) -> Json:
        """POST undo."""
        return await self._change("POST", "undo", {"wait": False}, deadline)

    async def retry(self, deadline: float | None) -> Json:
        """POST retry."""
        return await self._change("POST", "retry", {"wait": False}, deadline)

    async def suspend(self, *, suspended: bool, deadline: float | None) -> Json:
        """POST suspend or resume."""
        return await self._change("POST", "suspend" if suspended else "resume", {}, deadline)

    def _event_request(self, since: str, read_seconds: float) -> dict[str, Any]:
        return {
            "method": "GET",
            "url": self._root + "events",
            "headers": {
                "Accept": MEDIA_TYPE,
                "Authorization": f"Bearer {self._access.token()}",
                "Last-Event-ID": since,
            },
            "timeout": httpx.Timeout(CONNECT_SECONDS, read=read_seconds),
        }

    def _broken(self, error: httpx.TransportError) -> RlfleetError:
        remedy = "check the address of the RL API, and its authority"
        return broken(error, self._access.url, remedy, self._access.proxy)

    async def _state(self) -> tuple[Json, Json | None]:
        return state_of(await self._send("GET", "state"), self.namespace, self._fleet)

    async def _change(self, method: str, path: str, body: Json, deadline: float | None) -> Json:
        key = uuid.uuid4().hex
        try:
            answer = await patiently(self, lambda: self._send(method, path, body, key), deadline)
        except Superseded as error:
            now = await patiently(self, lambda: self.get(Kind.WEIGHTS, ""), deadline)
            seen = WeightVersion.model_validate(now)
            raise Superseded(error.version, in_words(label_of(seen)), seen.writer) from error
        return weights_of(answer, self.namespace, self._fleet)

    async def _send(
        self, method: str, path: str, body: Json | None = None, key: str | None = None
    ) -> Json:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {self._access.token()}",
        }
        if key is not None:
            headers |= {"Content-Type": "application/json", "Idempotency-Key": key}
        request: dict[str, Any] = {
            "method": method,
            "url": self._root + path,
            "headers": headers,
            "content": None if body is None else json.dumps(body),
        }
        try:
            answer = await self._answer(request)
        except httpx.TransportError as error:
            raise self._broken(error) from error
        return document_of(answer, str((body or {}).get("version", "?")))


class BlockingRlApi(BlockingPlace, _RlApi):
    """Sends from the caller's thread; its coroutines never suspend."""

    def __init__(self, access: RlAccess, fleet: str) -> None:
        super().__init__(access, fleet)
        self._http = blocking_http(access.tls, access.proxy)


class AsyncRlApi(AsyncPlace, _RlApi):
    """Sends on the running event loop of asyncio."""

    def __init__(self, access: RlAccess, fleet: str) -> None:
        super().__init__(access, fleet)
        self._http = async_http(access.tls, access.proxy)


def _check_stream(answer: httpx.Response) -> None:
    """Check that an answer is a stream of events. Errors: NoStreamError; the state then shows why."""
    if answer.status_code != 200 or not answer.headers.get("content-type", "").startswith(
        MEDIA_TYPE
    ):
        raise NoStreamError(answer.status_code)
