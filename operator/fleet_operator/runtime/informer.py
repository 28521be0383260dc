"""Keeps slim views of all worker pods up to date by list and watch.

kopf is not used for pods: measured, its handlers cost 0.7 to 0.9 ms and 30 KiB a pod event, a slim
view 0.04 ms and a twentieth of the memory, which decides at 10,000 pods.

A list is taken in chunks; a watch goes on from its resourceVersion with bookmarks, so that a broken
stream resumes; 410 lists anew. Whoever is told of a change reads the store, never the event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from fleet_operator.api import names
from fleet_operator.core.observed import PodView
from fleet_operator.core.pod_view import pod_view
from fleet_operator.errors import Conflict, FleetError, NotFound
from fleet_operator.ports import Kube

logger = logging.getLogger(__name__)

CHUNK = 500
SERVER_TIMEOUT_SECONDS = 300
RETRY_SECONDS = (0.2, 1.0, 2.0, 5.0)

FleetKey = tuple[str, str]
"""Namespace and name of a fleet."""


class PodInformer:
    """All worker pods of some namespaces, or of all (None)."""

    def __init__(
        self,
        kube: Kube,
        namespaces: Iterable[str | None],
        on_change: Callable[[FleetKey], None],
    ) -> None:
        self._pods = PodStore(on_change)
        self._streams = [_Stream(kube, namespace, self._pods) for namespace in namespaces]

    async def run(self) -> None:
        """Keep the views up to date until cancelled."""
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(stream.run())

    async def synced(self) -> None:
        """Wait until every namespace has been listed once."""
        for stream in self._streams:
            await stream.synced.wait()

    def pods_of(self, key: FleetKey) -> list[PodView]:
        """The fleet's pods in order of ordinal; of two with one name the living one is last."""
        return self._pods.pods_of(key)

    def uids(self) -> Iterable[str]:
        """Uids of all pods that exist."""
        return self._pods.uids()


class PodStore:
    """Views by fleet, and who is told when they change."""

    def __init__(self, on_change: Callable[[FleetKey], None]) -> None:
        self._on_change = on_change
        self._pods: dict[FleetKey, dict[str, PodView]] = {}
        self._keys: dict[str, FleetKey] = {}

    def pods_of(self, key: FleetKey) -> list[PodView]:
        """The fleet's pods in order of ordinal; of two with one name the living one is last."""
        found = self._pods.get(key, {}).values()
        return sorted(found, key=lambda p: (p.ordinal, not p.deleting, p.uid))

    def put(self, pod: dict[str, Any]) -> None:
        """Take in a pod that was listed, added or modified; one that is no worker is left out."""
        metadata = pod["metadata"]
        fleet = _fleet_of(metadata)
        if fleet is None:
            self.remove(metadata["uid"])
            return
        key = (metadata["namespace"], fleet)
        view = pod_view(pod)
        pods = self._pods.setdefault(key, {})
        if pods.get(view.uid) != view:
            pods[view.uid] = view
            self._keys[view.uid] = key
            self._on_change(key)

    def remove(self, uid: str) -> None:
        """Forget a pod that is gone."""
        key = self._keys.pop(uid, None)
        if key is None:
            return
        pods = self._pods[key]
        del pods[uid]
        if not pods:
            del self._pods[key]
        self._on_change(key)

    def uids(self) -> Iterable[str]:
        """Uids of all pods that exist."""
        return self._keys.keys()

    def uids_in(self, namespace: str | None) -> set[str]:
        """Uids of the pods of one namespace, or of all."""
        return {u for u, key in self._keys.items() if namespace in {None, key[0]}}


def _fleet_of(metadata: dict[str, Any]) -> str | None:
    """The fleet of a worker pod. Whoever may make pods may put our labels on them: a worker is
    named after its fleet and its ordinal, anything else is not taken for one.
    """
    labels = metadata.get("labels", {})
    fleet, ordinal = labels.get(names.LABEL_FLEET, ""), labels.get(names.LABEL_ORDINAL, "")
    if not (ordinal.isascii() and ordinal.isdecimal()):
        return None
    return fleet if metadata["name"] == names.pod_name(fleet, int(ordinal)) else None


class _Stream:
    """List and watch of one namespace, or of all."""

    def __init__(self, kube: Kube, namespace: str | None, pods: PodStore) -> None:
        scope = f"/namespaces/{namespace}" if namespace else ""
        self._path = f"/api/v1{scope}/pods"
        self._namespace = namespace
        self._kube = kube
        self._pods = pods
        self._version = ""
        self._failures = 0
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            told = "it ended before anything came"
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
            except (Conflict, NotFound) as error:
                self._version = ""  # Too old to go on from: list anew.
                told = str(error)
            except FleetError as error:
                told = str(error)
            delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
            self._failures += 1
            logger.warning("pod watch: %s; again in %.1f s", told, delay)
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        params = {"labelSelector": selector, "limit": str(CHUNK)}
        seen: dict[str, Any] = {}
        while True:
            page = await self._kube.get(self._path, params)
            seen.update((p["metadata"]["uid"], p) for p in page["items"])
            follow = page["metadata"].get("continue")
            if not follow:
                break
            params["continue"] = follow
        for uid in self._pods.uids_in(self._namespace) - seen.keys():
            self._pods.remove(uid)
        for pod in seen.values():
            self._pods.put(pod)
        self._version = page["metadata"]["resourceVersion"]
        self.synced.set()

    async def _watch(self) -> bool:
        """Follow one stream to its end. Returns: whether it brought anything."""
        params = {
            "labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(SERVER_TIMEOUT_SECONDS),
        }
        alive = False
        async for event in self._kube.watch(self._path, params):
            alive, self._failures = True, 0
            pod = event["object"]
            self._version = pod["metadata"]["resourceVersion"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._pods.put(pod)
                case "DELETED":
                    self._pods.remove(pod["metadata"]["uid"])
                case _:
                    pass  # A bookmark carries only the version.
        return alive
