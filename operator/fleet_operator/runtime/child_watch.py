"""Watches a fleet's Services, disruption budgets and router, so that a deleted one is recreated at once.

The ConfigMap and the Secret are read with every sweep instead: a watch of them would need the right
to list all ConfigMaps and Secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.list_watch import ListWatch, OnObject
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.reads import OnRead
from fleet_operator.runtime.router_objects import RouterObjects
from rlfleet_resources import names

FOLLOWED = (
    ("/api/v1", "services"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/apis/apps/v1", "deployments"),
)


class ChildWatch:
    """The followed children of all fleets, in some namespaces or in all (None).

    Args:
        kube: The API.
        namespaces: Where.
        differs: Returns whether the object of a fleet at a path (None: no object) differs from what was written there.
        on_change: Called with the fleet if so.
        on_read: Called with the outcome of each list and watch.
        on_object: Called with each object.
        routers: Takes in the objects of routers.
    """

    def __init__(
        self,
        kube: Kube,
        namespaces: Iterable[str | None],
        differs: Callable[[FleetKey, str, Json | None], bool],
        on_change: Callable[[FleetKey], None],
        on_read: OnRead,
        on_object: OnObject,
        routers: RouterObjects,
    ) -> None:
        self._streams = [
            ListWatch(
                kube,
                root,
                plural,
                namespace,
                _Children(root, plural, differs, on_change, routers),
                on_read,
                on_object,
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
    """Children of one kind. Only path and fleet are kept."""

    def __init__(
        self,
        root: str,
        plural: str,
        differs: Callable[[FleetKey, str, Json | None], bool],
        on_change: Callable[[FleetKey], None],
        routers: RouterObjects,
    ) -> None:
        self._routers = routers
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
        changed = self._routers.put((namespace, fleet), path, body)
        if self._differs((namespace, fleet), path, body) or changed:
            self._on_change((namespace, fleet))

    def remove(self, uid: str) -> None:
        path, key = self._known.pop(uid, ("", ("", "")))
        if not path:
            return
        changed = self._routers.remove(key, path)
        if self._differs(key, path, None) or changed:
            self._on_change(key)

    def uids_in(self, namespace: str | None) -> set[str]:
        return {u for u, (_, key) in self._known.items() if namespace in {None, key[0]}}
