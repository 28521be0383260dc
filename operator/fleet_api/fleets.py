"""Reads a fleet, its WeightVersion and its pods, always from the API server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from pydantic import ValidationError

from fleet_api.lists import table_pages
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_api.shared_calls import SharedReads
from fleet_api.steering import Steered, Steering, spec_of
from fleet_api.ttl_cache import TtlCache
from fleet_operator.api.fleet import FleetSpec
from fleet_operator.places import Places
from rlfleet.ports import Json, Kind
from rlfleet.resources import WeightVersion
from rlfleet_resources import names
from rlfleet_resources.fleet_status import FleetStatus

PODS_OF_A_PAGE = 100
LARGE_SECONDS = 5.0
"""Between two reads of a fleet whose spec is too large. The API server encodes it whole for each read."""
MAX_LARGE = 1024
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Fleet:
    """An InferenceFleet."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: FleetSpec
    status: FleetStatus

    @property
    def is_external(self) -> bool:
        """Whether a trainer updates the workers."""
        return self.spec.is_external

    @property
    def world_size(self) -> int:
        """Processes of one worker that take part in a transfer of weights."""
        return self.spec.engine.tensor_parallel_size * self.spec.engine.pipeline_parallel_size


class Fleets:
    """The fleets of a cluster."""

    def __init__(
        self, cluster: Cluster, places: Places, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._places = places
        self._steering = Steering(cluster, places, monotonic)
        self._reads: SharedReads[tuple[str, str], Fleet] = SharedReads()
        self._weights_reads: SharedReads[Steered, WeightVersion | None] = SharedReads()
        self._large: TtlCache[tuple[str, str], Json] = TtlCache(MAX_LARGE, monotonic)
        """Fleets without the spec that was too large."""

    async def fleet(self, namespace: str, name: str) -> Fleet:
        """One fleet. Errors: Problem 404, 502; those of `Cluster`."""
        return await self._reads.join((namespace, name), partial(self._read, namespace, name))

    async def _read(self, namespace: str, name: str) -> Fleet:
        if (large := self._large.get((namespace, name))) is not None:
            spec_of(large, names.FLEET_KIND)
        try:
            async with self._places.of(namespace):
                found = await self._cluster.of(namespace).get(Kind.FLEETS, name)
                if found.get("spec") is None:
                    small = {key: found["metadata"][key] for key in ("name", "namespace")}
                    self._large.put((namespace, name), {"metadata": small}, LARGE_SECONDS)
                return Fleet(
                    namespace=namespace,
                    name=name,
                    uid=found["metadata"]["uid"],
                    generation=found["metadata"]["generation"],
                    spec=FleetSpec.model_validate(spec_of(found, names.FLEET_KIND)),
                    status=FleetStatus.read(found.get("status") or {}),
                )
        except (ValidationError, RecursionError) as error:
            raise Problem(
                HTTPStatus.BAD_GATEWAY,
                "UnreadableFleet",
                f"InferenceFleet {name!r} in namespace {namespace!r} has fields that this release "
                "cannot read; install the API and the CRDs of one release",
            ) from error

    async def weights(self, fleet: Fleet, adapter: str = "") -> WeightVersion | None:
        """The WeightVersion that steers the fleet's base weights, or those of an adapter: the oldest one.

        None without one.
        """
        steered = (fleet.namespace, fleet.name, adapter)
        return await self._weights_reads.join(steered, partial(self._read_weights, steered))

    async def _read_weights(self, steered: Steered) -> WeightVersion | None:
        found = await self._steering.of(steered)
        return None if found is None else WeightVersion.model_validate(found)

    async def pods(self, fleet: Fleet) -> dict[int, Json]:
        """The pods of the fleet's workers by ordinal, in its order.

        A pod that only carries the fleet's labels is not one of them. Nor is one that has lost a label: the
        operator does not count it either, and reports it. Only the fields that are read here are kept.
        """
        path, params = _pods_of(fleet)
        params |= {"limit": str(PODS_OF_A_PAGE)}
        found: dict[int, Json] = {}
        while True:
            async with self._places.of(fleet.namespace):
                page = await self._cluster.call("GET", path, params)
                for pod in page["items"]:
                    await asyncio.sleep(0)  # a page takes 30 ms to parse, and others need the loop
                    worker = names.worker_of(pod["metadata"])
                    owned = names.controller_uid(pod["metadata"]) == fleet.uid
                    if owned and worker is not None and worker[0] == fleet.name:
                        found[worker[1]] = _slim(pod)
                following = page.get("metadata", {}).get("continue")
            if not following:
                return dict(sorted(found.items()))
            params["continue"] = following

    async def pod_table(self, fleet: Fleet) -> Json:
        """The API server's table of all pods with the fleet's labels, without the pods themselves."""
        path, params = _pods_of(fleet)
        tables = table_pages(self._cluster, self._places, fleet.namespace, path, params)
        found = await anext(tables)
        rows = [row async for page in tables for row in page["rows"] or ()]
        return found | {"rows": [*(found["rows"] or ()), *rows]}


def _slim(pod: Json) -> Json:
    """The part of a pod that decides whether and where its worker is called."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    conditions = status.get("conditions") or ()
    return {
        "metadata": {k: metadata[k] for k in ("name", "uid", "deletionTimestamp") if k in metadata},
        "status": {
            "phase": status.get("phase"),
            "podIP": status.get("podIP"),
            "conditions": [c for c in conditions if c["type"] == "Ready"],
            "containerStatuses": [c for c in containers if c["name"] == names.WORKER_CONTAINER],
        },
    }


def _pods_of(fleet: Fleet) -> tuple[str, dict[str, str]]:
    path = f"/api/v1/namespaces/{fleet.namespace}/pods"
    return path, {"labelSelector": names.fleet_selector(fleet.name)}


def is_name(text: str) -> bool:
    """Whether a fleet or a namespace may have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """The name, if it is valid. Errors: Problem 404."""
    if not is_name(text):
        raise Problem(HTTPStatus.NOT_FOUND, "NotFound", f"there is no {what} of this name")
    return text
