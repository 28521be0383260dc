"""Reads the state of the cluster and the workers a few times a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from demo.place import FLEET, WEIGHTS, CommandError, Place, kubectl
from rlfleet.cli.view import FleetView, fleet_view
from rlfleet.resources import InferenceFleet, WeightVersion

PERIOD_SECONDS = 0.4


@dataclass
class WorkerState:
    """One worker, by its own /metrics."""

    phase: str = "away"
    version: str = ""
    admitted: bool = False
    held: int = 0
    restarts: int = 0


@dataclass
class Snapshot:
    """The state of the cluster that the screen shows. `view`: the fleet, as `rlfleet watch` shows it."""

    view: FleetView | None = None
    weights: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    desired: str = ""
    workers: dict[str, WorkerState] = field(default_factory=dict)

    @property
    def applied(self) -> str:
        """The version that all admitted workers serve."""
        return str(self.weights.get("appliedVersion") or "-")

    @property
    def phase(self) -> str:
        """Phase of the rollout."""
        return str(self.weights.get("phase", "Pending"))

    def condition(self, kind: str) -> dict[str, Any] | None:
        """A condition of the WeightVersion, if it is about the present generation."""
        found = [c for c in self.weights.get("conditions", ()) if c["type"] == kind]
        if not found or found[0]["observedGeneration"] != self.generation:
            return None
        condition: dict[str, Any] = found[0]
        return condition

    def is_ready(self) -> bool:
        """Whether the present generation is Ready."""
        ready = self.condition("Ready")
        return ready is not None and ready["status"] == "True"


def view_of(items: Sequence[dict[str, Any]], now: datetime) -> FleetView | None:
    """The demo's fleet with its rollout; None until both exist."""
    found = {item["kind"]: item for item in items if item["metadata"]["name"] in {FLEET, WEIGHTS}}
    if not {"InferenceFleet", "WeightVersion"} <= found.keys():
        return None
    fleet = InferenceFleet.model_validate(found["InferenceFleet"])
    return fleet_view(fleet, [WeightVersion.model_validate(found["WeightVersion"])], now)


class Watcher:
    """Keeps a `Snapshot` up to date."""

    def __init__(self, place: Place, workers: int) -> None:
        self.snapshot = Snapshot(workers={f"{FLEET}-{n}": WorkerState() for n in range(workers)})
        self._place = place
        self._urls: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Read the state repeatedly until cancelled."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
            while True:
                pods = await asyncio.to_thread(self._read_cluster)
                await asyncio.gather(*(self._read_worker(http, *pod) for pod in pods.items()))
                await asyncio.sleep(PERIOD_SECONDS)

    def _read_cluster(self) -> dict[str, str]:
        """Read the objects into the snapshot. Returns: addresses of the workers' pods by name."""
        try:
            found = kubectl(self._place, "get", "ifl,wv,pods", "-o", "json")
        except CommandError:
            return {}
        addresses: dict[str, str] = {}
        items = json.loads(found.stdout)["items"]
        self.snapshot.view = view_of(items, datetime.now(UTC))
        for item in items:
            name = item["metadata"]["name"]
            if item["kind"] == "WeightVersion" and name == WEIGHTS:
                self.snapshot.weights = item.get("status", {})
                self.snapshot.generation = item["metadata"]["generation"]
                self.snapshot.desired = item["spec"]["version"]
            elif item["kind"] == "Pod" and name in self.snapshot.workers:
                status = item.get("status", {})
                container = (status.get("containerStatuses") or [{}])[0]
                self.snapshot.workers[name].restarts = container.get("restartCount", 0)
                if status.get("podIP"):
                    addresses[name] = status["podIP"]
        return addresses

    async def _read_worker(self, http: httpx.AsyncClient, name: str, address: str) -> None:
        worker = self.snapshot.workers[name]
        try:
            if (name, address) not in self._urls:
                url = await asyncio.to_thread(self._place.worker_url, name)
                self._urls[name, address] = url
            page = await http.get(self._urls[name, address] + "/metrics")
            page.raise_for_status()
        except (httpx.HTTPError, CommandError):
            worker.phase, worker.version, worker.admitted = "away", "", False
            return
        ours = "\n".join(line for line in page.text.splitlines() if "rlfleet_worker_" in line)
        for family in text_string_to_metric_families(ours + "\n"):
            for sample in family.samples:
                match sample.name:
                    case "rlfleet_worker_phase" if sample.value == 1:
                        worker.phase = sample.labels["phase"]
                    case "rlfleet_worker_version_info":
                        worker.version = sample.labels["version"]
                    case "rlfleet_worker_admitted":
                        worker.admitted = sample.value == 1
                    case "rlfleet_worker_requests_held":
                        worker.held = int(sample.value)
                    case _:
                        pass
