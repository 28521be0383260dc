"""Reads of a resource: which there are, its path, its pages, and whether it can be read at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fleet_operator.errors import Conflict, FleetError, TooLarge
from fleet_operator.ports import Json, Kube

CHUNK = 500
TRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Read:
    """A verb on a resource, by its plural, in one namespace, or in all (None)."""

    verb: Literal["list", "watch"]
    resource: str
    namespace: str | None

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {self.resource} {where}"


OnRead = Callable[[Read, Exception | None], None]
"""Called with the outcome of a read: an error, or None for success. Only a defect is no `FleetError`."""


async def try_read(
    kube: Kube, root: str, plural: str, namespace: str | None, on_read: OnRead
) -> list[FleetError]:
    """Check whether a resource can be listed and watched. `root`: as of `ListWatch`.

    Returns: the errors; empty if both are allowed.
    """
    path = collection(root, plural, namespace)
    list_, watch = Read("list", plural, namespace), Read("watch", plural, namespace)
    try:
        page = await kube.get(path, {"limit": "1"})
    except FleetError as error:
        on_read(list_, error)
        return [error]
    on_read(list_, None)
    params = {"resourceVersion": page["metadata"]["resourceVersion"], "timeoutSeconds": "1"}
    try:
        async with asyncio.timeout(TRY_SECONDS):
            async for _ in kube.watch(path, params):
                pass  # A refused watch raises before its first event.
    except (Conflict, TimeoutError):
        pass  # The watch was not refused.
    except FleetError as error:
        on_read(watch, error)
        return [error]
    on_read(watch, None)
    return []


def collection(root: str, plural: str, namespace: str | None) -> str:
    """The path of a resource in one namespace, or in all (None)."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural}"


async def pages(
    kube: Kube, path: str, params: Mapping[str, str] | None = None
) -> AsyncIterator[Json]:
    """Yield the pages of a list. All 10,000 pods at once would be 276 MiB of raw objects.

    If a page is too large, the next request is for fewer objects.

    Errors: those of the API; Conflict if the next page came too late, so that the list must begin again.
    """
    asked, limit = dict(params or {}), CHUNK
    while True:
        asked["limit"] = str(limit)
        try:
            page = await kube.get(path, asked)
        except TooLarge:
            if limit == 1:
                raise
            limit //= 2
            continue
        limit = min(2 * limit, CHUNK)
        yield page
        follow = page["metadata"].get("continue")
        if not follow:
            return
        asked["continue"] = follow
