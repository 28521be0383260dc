"""Reads and changes objects over the Kubernetes API, blocking and for asyncio.

Source: Kubernetes API concepts, "Efficient detection of changes" and "Patch". The requests and the
meaning of answers are written once. The two classes at the end only send.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import httpx

from rlfleet.errors import RlfleetError
from rlfleet.kube_answers import Lines, change_of, failure, json_of, object_of
from rlfleet.kubeconfig import Access
from rlfleet.patches import Patches
from rlfleet.ports import Change, Changes, Json, Kind, run_blocking
from rlfleet.sending import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    AsyncPlace,
    BlockingPlace,
    Sending,
    async_http,
    blocking_http,
    broken,
)
from rlfleet_resources.names import API_VERSION

JSON = "application/json"
_ANY = "application/json, */*"
"""A log is text."""
_SPARE_SECONDS = 5.0
"""How much earlier than the client the server ends a watch: one that is silent for longer is broken."""


class _Kube(Sending):
    """The common part of both ways of sending.

    `field_manager`: the owner of the fields that are written. `max_bytes`: the largest answer; None for any. `read`: parses
    the objects and pages in answers, and the lines of watches.
    """

    def __init__(
        self,
        access: Access,
        field_manager: str,
        max_bytes: int | None = None,
        read: Callable[[bytes], Json] = json.loads,
    ) -> None:
        self._access = access
        self._max_bytes = max_bytes
        self._read = read
        # Else CRDs of an older release drop a field that they do not know, and the patch succeeds.
        self._writer = {"fieldManager": field_manager, "fieldValidation": "Strict"}

    @property
    def namespace(self) -> str:
        """See `Objects`, also for the methods below."""
        return self._access.namespace

    async def get(self, kind: Kind, name: str) -> Json:
        """GET."""
        return await self._send("GET", f"{kind}/{name}")

    async def list(self, kind: Kind, name: str) -> tuple[Json | None, str]:
        """GET of the collection. Its version is the newest one, unlike that of an object."""
        found = await self._send("GET", kind, _only(name))
        items: list[Json] = found["items"]
        return (items[0] if items else None), found["metadata"]["resourceVersion"]

    async def all(self, kind: Kind) -> Sequence[Json]:
        """GET of the whole collection."""
        items: Sequence[Json] = (await self._send("GET", kind))["items"]
        return items

    async def patch(self, kind: Kind, name: str, body: Json) -> Json:
        """PATCH."""
        return await self._send("PATCH", f"{kind}/{name}", self._writer, body)

    async def create(self, kind: Kind, body: Json) -> Json:
        """POST."""
        return await self._send("POST", kind, self._writer, body)

    def changes(self, name: str) -> Changes:
        """Changes, made by patches of the object."""
        return Patches(self, name)

    async def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        """GET, as a stream."""
        lines, token = Lines(self._max_bytes), await self._token()
        request = self._watching(token, kind, name, resource_version, seconds)
        try:
            async with aclosing(self._chunks(request, _check_success)) as chunks:
                async for chunk in chunks:
                    for line in lines.of(chunk):
                        yield change_of(line, self._read)
        except httpx.TransportError as error:
            raise self._broken(error) from error

    async def _send(
        self, method: str, path: str, params: dict[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """The object that the server answers with."""
        request = self._request(await self._token(), method, path, params, body)
        return object_of(await self._answered(request), body, self._read)

    async def _called(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None,
        body: Json | None,
        *,
        accept: str,
        media: str = "",
    ) -> httpx.Response:
        """The answer to any request. `accept`: what it may be; empty for `media`. Errors: those of `Objects`."""
        request = self._request(await self._token(), method, path, params, body, media=media)
        if accept:
            request["headers"]["Accept"] = accept
        answer = await self._answered(request)
        if not answer.is_success:
            raise failure(answer, elsewhere=True)
        return answer

    async def _answered(self, request: dict[str, Any]) -> httpx.Response:
        try:
            return await self._answer(request, self._max_bytes)
        except httpx.TransportError as error:
            raise self._broken(error) from error

    async def _token(self) -> str:
        if self._access.token_blocks:
            return await self.in_background(self._access.token)
        return self._access.token()  # in a busy loop, a thread takes longer than the request

    def _request(
        self,
        token: str,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        media: str = "",
        read_seconds: float = ANSWER_SECONDS,
    ) -> dict[str, Any]:
        """Arguments for httpx. `path`: below our API group, or from the root if it begins with `/`."""
        access = self._access
        accepted = media if media and body is None else "json"
        headers = {"Accept": f"application/{accepted}", **access.headers}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            merge = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{media or merge}"
        # An empty namespace means all of them.
        scope = f"namespaces/{access.namespace}/" if access.namespace else ""
        ours = f"/apis/{API_VERSION}/{scope}{path}"
        return {
            "method": method,
            "url": f"{access.server}{path if path.startswith('/') else ours}",
            "params": params,
            "headers": headers,
            "content": None if body is None else json.dumps(body),
            "timeout": httpx.Timeout(CONNECT_SECONDS, read=read_seconds),
            "extensions": {"sni_hostname": access.server_name} if access.server_name else {},
        }

    def _watching(
        self, token: str, kind: Kind, name: str, since: str, seconds: float
    ) -> dict[str, Any]:
        params = _only(name) | {
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, math.ceil(seconds - _SPARE_SECONDS))),
        }
        return self._request(token, "GET", kind, params, read_seconds=seconds)

    def _broken(self, error: httpx.TransportError) -> RlfleetError:
        access, remedy = self._access, "check server and authority in the kubeconfig"
        return broken(error, access.server, remedy, access.proxy)


class BlockingKube(BlockingPlace, _Kube):
    """Sends from the caller's thread; its coroutines never suspend. Arguments: as for `_Kube`."""

    def __init__(
        self,
        access: Access,
        field_manager: str,
        max_bytes: int | None = None,
        read: Callable[[bytes], Json] = json.loads,
    ) -> None:
        super().__init__(access, field_manager, max_bytes, read)
        self._http = blocking_http(access.tls, access.proxy)

    def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        media: str = "",
    ) -> Json:
        """Call any path of the API server, and return the object that it answers with.

        `path` begins at the root, as `/api/v1/namespaces/rl/pods`. `media` is the type of the body
        without `application/`: JSON or a merge patch by default. Without a body it is that of the answer.

        Errors: those of `Objects`, and RlfleetError for a request that the server cannot read.
        """
        accept = "" if media and body is None else _ANY
        called = self._called(method, path, params, body, accept=accept, media=media)
        return json_of(run_blocking(called), self._read)

    def text(self, path: str, params: dict[str, str] | None = None) -> str:
        """The text under a path, such as a log. Errors: as for `call`."""
        return run_blocking(self._called("GET", path, params, None, accept=_ANY)).text


class AsyncKube(AsyncPlace, _Kube):
    """Sends on the running event loop of asyncio. Arguments: as for `_Kube`, and `transport` of `sending.async_http`."""

    def __init__(
        self,
        access: Access,
        field_manager: str,
        max_bytes: int | None = None,
        read: Callable[[bytes], Json] = json.loads,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(access, field_manager, max_bytes, read)
        self._http = async_http(access.tls, access.proxy, transport)

    def of(self, namespace: str) -> AsyncKube:
        """The API for another namespace, over the same connections: close only one of both."""
        made = copy.copy(self)
        made._access = dataclasses.replace(self._access, namespace=namespace)  # noqa: SLF001 - own class
        return made

    async def call(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        accept: str = JSON,
    ) -> Json:
        """As `BlockingKube.call`, for JSON. `accept`: its media type, such as that of a table."""
        answer = await self._called(method, path, params, body, accept=accept)
        return json_of(answer, self._read if accept == JSON else json.loads)


def _check_success(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise failure(answer)


def _only(name: str) -> dict[str, str]:
    """Parameters for one object of a collection, so that a right on its name is enough.

    Source: Kubernetes RBAC, "Referring to resources".
    """
    return {"fieldSelector": f"metadata.name={name}"}
