"""A fake API server for tests of the client, in memory and with a clock of its own.

It follows the rules of the API server that the client relies on: generations, resource versions,
merge patches, and watches that continue from a version. A script changes the objects while the
client waits: one act each time that a watch has no more events.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rlfleet.errors import Forbidden, NotFound
from rlfleet.patches import Patches
from rlfleet.ports import Change, ConflictError, ExistsError, GoneError, Json, Kind

TIME = "2026-11-22T10:00:00Z"
TIMINGS = {
    "stageSeconds": 1.0,
    "pauseSeconds": 0.2,
    "loadSeconds": 0.4,
    "resumeSeconds": 0.1,
    "totalSeconds": 1.9,
    "maxWorkerPauseSeconds": 0.5,
    "lostWorkerSeconds": 0,
    "heldRequests": 0,
}
HISTORY = [
    {"version": "42", "result": "Applied", "startedAt": TIME, "totalSeconds": 1.7},
    {"version": "41", "result": "Applied", "startedAt": TIME, "totalSeconds": 1.6},
]
FLEET: Json = {
    "metadata": {"name": "policy", "namespace": "rl"},
    "status": {
        "observedGeneration": 1,
        "replicas": 4,
        "readyReplicas": 4,
        "versions": [{"version": "42", "workers": 4}],
        "pinned": [
            {
                "version": "41",
                "digest": f"sha256:{32 * '41'}",
                "source": {"path": "/weights/step_41"},
            }
        ],
        "workers": {"total": 4, "serving": 4},
        "endpoint": "http://policy.rl.svc:8000",
    },
}


def condition(kind: str, reason: str, generation: int, **more: Any) -> Json:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": f"because of {reason}",
        "observedGeneration": generation,
        "lastTransitionTime": TIME,
    } | more


class FakeObjects:
    """One WeightVersion `policy` at version 42, and its fleet."""

    namespace = "rl"

    def __init__(self, *, obeys: bool = True, **spec: Any) -> None:
        self.now = 1000.0
        self.closed = False
        self.fleet: Json | None = copy.deepcopy(FLEET)
        self.weights: Json | None = None
        self.script: deque[Callable[[], None]] = deque()
        """Acts while a watch waits; each may change things, or raise the server's error."""
        self.failures: deque[Exception] = deque()
        """Errors that the next requests raise."""
        self.forbidden: set[str] = set()
        """Requests that the account may not make, such as `all weightversions`."""
        self.requests: list[tuple[str, Json | None]] = []
        self.oldest = 0
        """Watches from before this version have expired."""
        self._obeys = obeys
        self._version = 100
        self._changes: list[tuple[int, str, Json]] = []
        source = {"path": "/weights/step_{version}"}
        self.make({"fleetRef": {"name": "policy"}, "version": "42", "source": source} | spec)
        self.apply(timings=TIMINGS | {"totalSeconds": 1.7})
        self.write(history=HISTORY)

    # --- what others do ---------------------------------------------------------------------------

    def make(self, spec: Json, uid: str = "uid-1") -> None:
        """Another writer creates the object."""
        self.weights = {
            "metadata": {"name": "policy", "namespace": "rl", "uid": uid, "generation": 1},
            "spec": spec,
            "status": {"observedGeneration": -1},
        }
        self._changed("ADDED")

    def rename(self, name: str) -> FakeObjects:
        """The object has another name."""
        assert self.weights is not None
        self.weights["metadata"]["name"] = name
        return self

    def delete(self) -> None:
        """Another writer deletes the object."""
        self._changed("DELETED")
        self.weights = None

    def desire(self, *, writer: str = "", **spec: Any) -> None:
        """Another writer changes the spec. `writer`: the field manager that the API server records."""
        fields = {"f:spec": {f"f:{name}": {} for name in spec}}
        entries = [{"manager": writer, "fieldsV1": fields}] if writer else []
        self._merge({"spec": spec, "metadata": {"managedFields": entries}})

    def write(self, **status: Any) -> None:
        """The operator writes fields of the status."""
        assert self.weights is not None
        self.weights["status"] = self.weights["status"] | status
        self._changed("MODIFIED")

    def look(self, phase: str, *conditions: Json, **status: Any) -> None:
        """The operator reports of the generation that it sees."""
        assert self.weights is not None
        spec, metadata = self.weights["spec"], self.weights["metadata"]
        self.write(
            **{
                "observedGeneration": metadata["generation"],
                "desiredVersion": spec["version"],
                "desiredRunID": spec.get("runID"),
                "phase": phase,
                "retried": metadata.get("annotations", {}).get("rlfleet.dev/retry", ""),
                "startedAt": TIME,
                "conditions": list(conditions),
                "workersApplied": "0/4",
            }
            | status
        )

    def apply(self, **status: Any) -> None:
        """The operator has applied the desired version."""
        assert self.weights is not None
        spec = self.weights["spec"]
        applied = {"version": spec["version"], "source": spec["source"], "appliedAt": TIME}
        applied |= {"runID": spec["runID"]} if "runID" in spec else {}
        workers = {"total": 4, "staged": 4, "applied": 4}
        figures = {"timings": TIMINGS, "workers": workers, "workersApplied": "4/4"}
        figures |= {"appliedVersion": spec["version"], "applied": applied}
        self.look("Applied", **(figures | status))

    def stall(self, reason: str, **more: Any) -> None:
        """The operator reports that the rollout has stalled."""
        assert self.weights is not None
        generation = self.weights["metadata"]["generation"]
        self.look("Staging", condition("Stalled", reason, generation, **more))

    def expire(self) -> None:
        """The server forgets all changes up to now, and says so to the watch that waits."""
        self.oldest = self._version
        raise GoneError("too old resource version")

    # --- what the client does ---------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    async def in_background(self, work: Callable[[], Any]) -> Any:
        return work()

    async def close(self) -> None:
        self.closed = True

    async def get(self, kind: Kind, name: str) -> Json:
        self._serve(f"get {kind}")
        found = self.weights if kind is Kind.WEIGHTS else self.fleet
        if found is None or found["metadata"]["name"] != name:
            raise NotFound(f'{kind} "{name}" not found')
        return copy.deepcopy(found)

    async def list(self, kind: Kind, name: str) -> tuple[Json | None, str]:
        self._serve(f"list {kind}")
        return copy.deepcopy(self.weights), str(self._version)

    async def all(self, kind: Kind) -> list[Json]:
        self._serve(f"all {kind}")
        found = self.weights if kind is Kind.WEIGHTS else self.fleet
        return [] if found is None else [copy.deepcopy(found)]

    async def patch(self, kind: Kind, name: str, body: Json) -> Json:
        self._serve(f"patch {kind}", body)
        if (
            kind is Kind.FLEETS
            and self.fleet is not None
            and self.fleet["metadata"]["name"] == name
        ):
            self.fleet = merge_patched(self.fleet, body)
            return copy.deepcopy(self.fleet or {})
        if self.weights is None or self.weights["metadata"]["name"] != name:
            raise NotFound(f'{kind} "{name}" not found')
        now = self.weights["metadata"]["resourceVersion"]
        if body.get("metadata", {}).get("resourceVersion", now) != now:
            raise ConflictError("the object has been modified")
        self._merge(body)
        return copy.deepcopy(self.weights)

    def changes(self, name: str) -> Patches:
        return Patches(self, name)

    async def create(self, kind: Kind, body: Json) -> Json:
        self._serve(f"create {kind}", body)
        if self.weights is not None:
            raise ExistsError("already exists")
        self.make(body["spec"], uid="uid-2")
        return copy.deepcopy(self.weights or {})

    async def watch(
        self, kind: Kind, name: str, resource_version: str, seconds: float
    ) -> AsyncGenerator[Change]:
        assert seconds > 0
        self.requests.append((f"watch {kind} {resource_version}", None))
        if int(resource_version) < self.oldest:
            raise GoneError("too old resource version")
        since = int(resource_version)
        while True:
            for version, kind_of_change, found in list(self._changes):
                if version > since:
                    since = version
                    yield Change(kind_of_change, copy.deepcopy(found))
            if self._acts():
                continue
            self.now += seconds
            return

    # --- inside -----------------------------------------------------------------------------------

    def _acts(self) -> bool:
        """Play the next act. Returns: whether there was one."""
        if self.script:
            self.script.popleft()()
            return True
        if not self._obeys or self.weights is None:
            return False
        status, metadata = self.weights["status"], self.weights["metadata"]
        asked = (
            metadata["generation"],
            metadata.get("annotations", {}).get("rlfleet.dev/retry", ""),
        )
        if (status["observedGeneration"], status.get("retried", "")) == asked:
            return False
        self.look("Loading")
        self.apply()
        return True

    def _serve(self, request: str, body: Json | None = None) -> None:
        self.requests.append((request, copy.deepcopy(body)))
        if self.failures:
            raise self.failures.popleft()
        if request in self.forbidden:
            raise Forbidden(f"this account may not {request}")

    def _merge(self, body: Json) -> None:
        assert self.weights is not None
        before = copy.deepcopy(self.weights)
        merged = merge_patched(self.weights, body)
        if merged == before:
            return
        if merged["spec"] != before["spec"]:
            merged["metadata"]["generation"] += 1
        self.weights = merged
        self._changed("MODIFIED")

    def _changed(self, kind: str) -> None:
        assert self.weights is not None
        self._version += 1
        self.weights["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, kind, copy.deepcopy(self.weights)))


def merge_patched(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patched(merged.get(key), value)
    return merged


Call = Callable[..., Any]


def patches(objects: FakeObjects) -> list[Any]:
    return [body for request, body in objects.requests if request.startswith("patch")]
