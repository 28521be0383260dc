"""Keeps slim views of all worker pods up to date by list and watch.

kopf is not used for pods. Measured, its handlers cost 0.7 to 0.9 ms and 30 KiB for each pod event. A
slim view costs 0.04 ms and a twentieth of the memory, which matters at 10,000 pods.

A change only names the fleet. Its reader uses the store, never the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fleet_operator.core.manifests.pod_view import pod_view
from fleet_operator.core.worker_view import PodView
from fleet_operator.errors import ObjectUnread
from fleet_operator.ports import Kube
from fleet_operator.runtime.list_watch import ListWatch, OnObject
from fleet_operator.runtime.reads import OnRead
from rlfleet_resources import names

FleetKey = tuple[str, str]
"""Namespace and name of a fleet."""


class PodInformer:
    """All worker pods of some namespaces, or of all (None)."""

    def __init__(
        self,
        kube: Kube,
        namespaces: Iterable[str | None],
        on_change: Callable[[FleetKey], None],
        on_read: OnRead,
        on_object: OnObject,
    ) -> None:
        self._pods = PodStore(on_change)
        self._streams = {
            n: ListWatch(kube, "/api/v1", "pods", n, self._pods, on_read, on_object)
            for n in namespaces
        }

    async def run(self) -> None:
        """Keep the views up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in self._streams.values():
                group.create_task(stream.run())

    async def tried(self) -> None:
        """Wait until the first list of every namespace was read or refused."""
        for stream in self._streams.values():
            await stream.tried.wait()

    def is_synced(self, namespace: str) -> bool:
        """Whether the pods of a namespace have been listed."""
        stream = self._streams.get(namespace) or self._streams.get(None)
        return stream is not None and stream.synced.is_set()

    def pods_of(self, key: FleetKey) -> Sequence[PodView]:
        """The fleet's pods by ordinal; of two with the same name the one that is not deleted is last."""
        return self._pods.pods_of(key)

    def uids(self) -> Iterable[str]:
        """Uids of all pods that exist."""
        return self._pods.uids()


class PodStore:
    """Views of pods by fleet. `on_change` is called with the fleet of a changed view."""

    def __init__(self, on_change: Callable[[FleetKey], None]) -> None:
        self._on_change = on_change
        self._pods: dict[FleetKey, dict[str, PodView]] = {}
        self._keys: dict[str, FleetKey] = {}
        self._in_order: dict[FleetKey, tuple[PodView, ...]] = {}

    def pods_of(self, key: FleetKey) -> Sequence[PodView]:
        """The fleet's pods by ordinal; of two with the same name the one that is not deleted is last."""
        found = self._in_order.get(key)
        if found is None:
            pods = self._pods.get(key)
            if pods is None:
                return ()
            found = tuple(sorted(pods.values(), key=lambda p: (p.ordinal, not p.deleting, p.uid)))
            self._in_order[key] = found
        return found

    def put(self, pod: dict[str, Any]) -> None:
        """Take in a pod that was listed, added or modified. Pods that are not workers are ignored.

        Errors: ObjectUnread for a pod that has the labels of a worker and not the name of one.
        """
        metadata = pod["metadata"]
        worker = names.worker_of(metadata)
        if worker is None:
            self.remove(metadata["uid"])
            if names.LABEL_ORDINAL in (metadata.get("labels") or {}):
                raise _no_worker(metadata)
            return
        key = (metadata["namespace"], worker[0])
        view = pod_view(pod)
        pods = self._pods.setdefault(key, {})
        known = pods.get(view.uid)
        if known == view and known.version == view.version:
            return
        pods[view.uid] = view
        self._in_order.pop(key, None)
        self._keys[view.uid] = key
        if known != view:
            self._on_change(key)

    def remove(self, uid: str) -> None:
        """Forget a pod that is gone."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        pods = self._pods[key]
        del pods[uid]
        self._in_order.pop(key, None)
        if not pods:
            del self._pods[key]
        self._on_change(key)

    def uids(self) -> Iterable[str]:
        """Uids of all pods that exist."""
        return self._keys.keys()

    def uids_in(self, namespace: str | None) -> set[str]:
        """Uids of the pods of one namespace, or of all."""
        return {u for u, key in self._keys.items() if namespace in {None, key[0]}}


def _no_worker(metadata: dict[str, Any]) -> ObjectUnread:
    return ObjectUnread(
        f"pod {metadata['name']} in namespace {metadata['namespace']} has the labels of a worker, and not the name and "
        f"the ordinal, below {names.MOST_ORDINALS}, of one. The operator leaves it alone, and it counts as no worker. "
        f"Remove its label {names.LABEL_ORDINAL}, or delete it"
    )
