"""One fleet of fake workers under the real operator: it comes up, rolls over, and rests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench_scale import processes
from bench_scale.fakes import FakeFleet, Seen, dead_among
from bench_scale.operator import Operator
from bench_scale.place import Place
from bench_scale.server import MERGE

NAME = "policy"
SCHEDULER = "fake-kubelet"
_CALLS = ("stage", "pause", "load", "resume")
_POLL_SECONDS = 0.05
_GLANCE_SECONDS = 0.005
"""A barrier of 16 workers lasts this long."""
SETTLED_SECONDS = 1.5
"""Statuses that were held back are written by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout.

    Fields:
        seconds: from the patch to the last worker that serves the version.
        phases: seconds of each barrier from its first call to its last answer (`stage`), and before
            it (`to_stage`); empty for strategies without barriers.
        applied_seconds: from the patch to the status that says so; None if it never did.
        writes: of the operator to the API server, until it has settled.
        calls: of the operator to workers, questions included.
        cpu_seconds: of the operator until the status says so.
        loads: how many loads the workers have done; 0 for strategies without barriers.
    """

    seconds: float
    phases: dict[str, float]
    applied_seconds: float | None
    writes: int
    calls: int
    cpu_seconds: float
    loads: int

    def as_row(self) -> dict[str, Any]:
        """For the raw results."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A rollout whose operator was killed while workers held their requests for it.

    Fields:
        seconds: from the kill to the last worker that serves the version; the Lease of the killed
            operator, which its successor waits for, is part of it.
        applied_seconds: from the kill to the status that says so; None if it never did.
        loads: how many loads the workers have done; more than workers means work done twice.
    """

    seconds: float
    applied_seconds: float | None
    loads: int

    def as_row(self) -> dict[str, Any]:
        """For the raw results."""
        return asdict(self)


class BenchFleet:
    """The fleet, driven as a trainer drives it."""

    def __init__(self, place: Place, operator: Operator, fakes: FakeFleet, workers: int) -> None:
        self._place = place
        self._server = place.server
        self._operator = operator
        self._fakes = fakes
        self._workers = workers
        self._version = 0

    def bring_up(self, *, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
        """Create the fleet and wait until all of its workers serve.

        Errors: TimeoutError; RuntimeError if the operator has ended, which a lost Lease makes it do.
        """
        began, used = time.time(), self._operator.cpu_seconds()
        fleet = fleet_of(self._workers, self._fakes.admin_port)
        wanted = {"fleetRef": {"name": NAME}, "version": self._next(), "source": _SOURCE}
        weights = _OBJECT | {"kind": "WeightVersion", "spec": wanted}
        self._server.request("POST", self._place.path("inferencefleets"), fleet)
        self._server.request("POST", self._place.path("weightversions"), weights)
        seen = self._wait_serving(self._workers, began + seconds, say)
        applied = self._wait_applied(began, seconds=seconds)
        self._settle()
        return {
            "seconds": seen.served_at - began,
            "applied_seconds": applied,
            "cpu_seconds": self._operator.cpu_seconds() - used,
            "calls": sum(seen.calls.values()),
        }

    def roll(self, *, serving: int | None = None, seconds: float = 300) -> Rollout:
        """Publish a version and wait until all workers, or `serving` of them, serve it.

        Errors: TimeoutError.
        """
        self._next()
        writes, calls = self._server.writes(), self._calls()
        self._server.connect()
        began, used = time.time(), self._operator.cpu_seconds()
        patch = {"spec": {"version": self._label}}
        self._server.request("PATCH", self._place.path("weightversions", NAME), patch, MERGE)
        count = self._workers if serving is None else serving
        seen = self._fakes.wait(self._label, count, seconds=seconds)
        applied = self._wait_applied(began, seconds=20)
        cpu_seconds = self._operator.cpu_seconds() - used
        done = self._calls()
        return Rollout(
            seconds=seen.served_at - began,
            phases=_phases(seen, began),
            applied_seconds=applied,
            writes=self._settle() - writes,
            calls=done - calls,
            cpu_seconds=cpu_seconds,
            loads=_loads(seen),
        )

    def take_over(self, start: Callable[[], Operator], *, seconds: float = 300) -> Takeover:
        """Publish a version, kill the operator as soon as a worker holds its requests for it, and
        let another one, which `start` starts, end the rollout.

        Errors: TimeoutError.
        """
        self._next()
        patch = {"spec": {"version": self._label}}
        self._server.request("PATCH", self._place.path("weightversions", NAME), patch, MERGE)
        until = time.monotonic() + seconds
        while "pause" not in self._fakes.seen(self._label).marks:
            if time.monotonic() > until:
                raise TimeoutError(f"no worker pauses for {self._label}\n{self._operator.said()}")
            time.sleep(_GLANCE_SECONDS)
        self._operator.kill()
        killed = time.time()
        self._operator = start()
        seen = self._fakes.wait(self._label, self._workers, seconds=seconds)
        applied = self._wait_applied(killed, seconds=60)
        self._settle()
        return Takeover(
            seconds=seen.served_at - killed, applied_seconds=applied, loads=_loads(seen)
        )

    def rest(self, seconds: float) -> dict[str, Any]:
        """Wait, and do nothing."""
        writes, used = self._server.writes(), self._operator.cpu_seconds()
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        busy = (self._operator.cpu_seconds() - used) / took
        writes = self._server.writes() - writes
        return {"seconds": took, "writes": writes, "cpu_percent": 100 * busy}

    def set_strategy(self, strategy: str) -> None:
        """Roll out by another strategy from now on."""
        path = self._place.path("inferencefleets", NAME)
        patch = {"spec": {"rollout": {"strategy": strategy}}}
        self._server.request("PATCH", path, patch, MERGE)

    def set_faults(self, *, dead_percent: int, slow_percent: int, slow_ms: int) -> int:
        """Let shares of the workers be dead and slow. Returns: how many are alive, when the fleet's
        status says so.

        Errors: TimeoutError.
        """
        self._fakes.set_faults(
            dead_percent=dead_percent, slow_percent=slow_percent, slow_ms=slow_ms
        )
        alive = self._workers - dead_among(self._workers, dead_percent)
        until = time.monotonic() + 60
        while self._status("inferencefleets").get("readyReplicas") != alive:
            if time.monotonic() > until:
                raise TimeoutError(f"the status does not show {alive} ready workers")
            time.sleep(_POLL_SECONDS)
        self._settle()
        return alive

    def pods(self) -> set[str]:
        """The uids of all pods of the fleet."""
        found = self._server.get(self._place.core("pods"))
        return {pod["metadata"]["uid"] for pod in found["items"]}

    def used(self) -> dict[str, float]:
        """Processor seconds of each process until now."""
        pids = {"operator": self._operator.pid, "fake-fleet": self._fakes.pid}
        pids |= processes.control_plane(self._place.run)
        return {name: processes.cpu_seconds(pid) for name, pid in pids.items()}

    @property
    def _label(self) -> str:
        return str(self._version)

    def _next(self) -> str:
        self._version += 1
        return self._label

    def _settle(self) -> int:
        """Wait until the operator has written all that it held back. Returns: its writes so far."""
        before, writes = -1, self._server.writes()
        while writes != before:
            time.sleep(SETTLED_SECONDS)
            before, writes = writes, self._server.writes()
        return writes

    def _calls(self) -> int:
        return sum(self._fakes.seen(self._label).calls.values())

    def _wait_serving(self, count: int, until: float, say: Callable[[str], None]) -> Seen:
        """In portions, with the progress of each."""
        while True:
            seconds = min(15.0, until - time.time())
            try:
                return self._fakes.wait(self._label, count, seconds=seconds)
            except TimeoutError as error:
                if self._operator.leases_lost:
                    raise RuntimeError(
                        f"the operator has ended by itself: {self._operator.said()}"
                    ) from None
                if time.time() >= until:
                    raise TimeoutError(f"{error}\n{self._operator.said()}") from None
                seen = self._fakes.seen(self._label)
                say(f"{seen.workers} pods run, {seen.serving} workers serve")

    def _wait_applied(self, began: float, *, seconds: float) -> float | None:
        """Seconds until the status says that the version is applied; None if it does not in time."""
        until = time.time() + seconds
        while time.time() < until:
            status = self._status("weightversions")
            if status.get("phase") == "Applied" and status.get("appliedVersion") == self._label:
                return time.time() - began
            time.sleep(_POLL_SECONDS)
        return None

    def _status(self, plural: str) -> dict[str, Any]:
        found = self._server.get(self._place.path(plural, NAME))
        status: dict[str, Any] = found.get("status", {})
        return status


def fleet_of(workers: int, admin_port: int, *, management: str = "Operator") -> dict[str, Any]:
    """An InferenceFleet of fake workers."""
    spec = {
        "replicas": workers,
        "model": {"name": "m", "source": {"path": "/weights/base"}},
        "weights": {"management": management, "roots": ["/weights"], "volumes": [_VOLUME]},
        "serving": {"port": 8000, "adminPort": admin_port},
        "pod": {"schedulerName": SCHEDULER},
    }
    return _OBJECT | {"kind": "InferenceFleet", "spec": spec}


_OBJECT = {"apiVersion": "rlfleet.dev/v1alpha1", "metadata": {"name": NAME}}
_SOURCE = {"path": "/weights/step_{version}"}
_VOLUME = {
    "name": "weights",
    "mountPath": "/weights",
    "persistentVolumeClaim": {"claimName": "weights"},
}


def _loads(seen: Seen) -> int:
    return seen.marks["load"][2] if "load" in seen.marks else 0


def _phases(seen: Seen, began: float) -> dict[str, float]:
    if not all(kind in seen.marks for kind in _CALLS):
        return {}
    found: dict[str, float] = {}
    before = began
    for kind in _CALLS:
        first, last, _ = seen.marks[kind]
        found[f"to_{kind}"] = first - before
        found[kind] = last - first
        before = last
    return found
