"""Notices what others do to a fleet's endpoints: a Service that is deleted is made again at once.

Only kinds that clients feel the loss of are followed. The ConfigMap and the Secret are looked at
with every sweep: watching them would take the right to list everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fleet_operator.api import names
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.list_watch import ListWatch, OnRead

FOLLOWED = (("/api/v1", "services"), ("/apis/policy/v1", "poddisruptionbudgets"))


class ChildWatch:
    """The followed children of all fleets, in some namespaces or in all (None).

    Args:
        kube: The API.
        namespaces: Where.
        differs: Whether what is at a path now (None: nothing) is not what was written there.
        on_change: Told of the fleet if so.
        on_read: Takes how each list and watch ends.
    """

    def __init__(
        self,
        kube: Kube,
        namespaces: Iterable[str | None],
        differs: Callable[[str, Json | None], bool],
        on_change: Callable[[FleetKey], None],
        on_read: OnRead,
    ) -> None:
        self._streams = [
            ListWatch(
                kube,
                root,
                plural,
                namespace,
                _Children(root, plural, differs, on_change),
                on_read,
            )
            for namespace in namespaces
            for root, plural in FOLLOWED
        ]

    async def run(self) -> None:
        """Follow them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(stream.run())


class _Children:
    """Children of one kind: no more is kept than who they are."""

    def __init__(
        self,
        root: str,
        plural: str,
        differs: Callable[[str, Json | None], bool],
        on_change: Callable[[FleetKey], None],
    ) -> None:
        self._root = root
        self._plural = plural
        self._differs = differs
        self._on_change = on_change
        self._known: dict[str, tuple[str, FleetKey]] = {}

    def put(self, body: Json) -> None:
        metadata = body["metadata"]
        fleet = metadata.get("labels", {}).get(names.LABEL_FLEET)
        if fleet is None:
            self.remove(metadata["uid"])
            return
        namespace, name = metadata["namespace"], metadata["name"]
        path = f"{self._root}/namespaces/{namespace}/{self._plural}/{name}"
        self._known[metadata["uid"]] = path, (namespace, fleet)
        if self._differs(path, body):
            self._on_change((namespace, fleet))

    def remove(self, uid: str) -> None:
        path, key = self._known.pop(uid, ("", ("", "")))
        if path and self._differs(path, None):
            self._on_change(key)

    def uids_in(self, namespace: str | None) -> set[str]:
        return {u for u, (_, key) in self._known.items() if namespace in {None, key[0]}}
