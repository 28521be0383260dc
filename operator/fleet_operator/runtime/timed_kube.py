"""Measures how long the API server takes to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeVar

from fleet_operator.errors import FleetError
from fleet_operator.ports import Json, Kube

T = TypeVar("T")


class TimedKube:
    """The Kubernetes API with a clock. Implements `ports.Kube`.

    Args:
        kube: What sends the requests.
        note: Takes the verb and the seconds of each request that ended, also with an error. Watches are
            left out: they last until the server ends them.
    """

    def __init__(self, kube: Kube, note: Callable[[str, float], None]) -> None:
        self._kube = kube
        self._note = note

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""
        return await self._timed("get", self._kube.get(path, params))

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it exists."""
        return await self._timed("create", self._kube.create(path, body))

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""
        return await self._timed("replace", self._kube.replace(path, body))

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: afterwards our fields are exactly those of the body."""
        return await self._timed("apply", self._kube.apply(path, body))

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""
        return await self._timed("merge", self._kube.merge(path, body))

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it has this uid. No error if it is gone."""
        await self._timed("delete", self._kube.delete(path, uid=uid))

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream watch events until the server ends the stream."""
        return self._kube.watch(path, params)

    async def _timed(self, verb: str, request: Awaitable[T]) -> T:
        began = monotonic()
        try:
            answer = await request
        except FleetError:
            self._note(verb, monotonic() - began)
            raise
        self._note(verb, monotonic() - began)
        return answer
