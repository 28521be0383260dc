"""The pods of a simulated fleet as the cluster has them: nodes, the kubelet's view, deletion.

The kubelet and the node controller see changes late, and the operator sees theirs later still
(`leader`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.model.fake_worker import FakeWorker

from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.core.worker_view import PROBE_SECONDS, PodView
from fleet_worker.protocol import Phase

EPOCH_START = datetime(2026, 1, 1, tzinfo=UTC)
NODE_SILENT_SECONDS = 40.0
"""The node controller marks a silent node's pods not ready after this long,"""
EVICTED_SECONDS = 60.0
"""and deletes them this long after that (`pods.LOST_NODE_SECONDS`)."""
GRACE_SECONDS = 60.0
STRANGER = "a stranger"
GATE = PodWait(awaited=Awaited.GATE, reason="SchedulingGated", since=EPOCH_START)
"""Judged on the bad side: for longer than any deadline."""
GONE_SECONDS = 1.0
"""How long a worker takes to drain and to end."""


def at(seconds: float) -> datetime:
    """The simulation's wall clock."""
    return EPOCH_START + timedelta(seconds=seconds)


@dataclass
class FakePod:
    """One pod with its process.

    Fields:
        ready: what the kubelet, or the node controller, has written last.
        wrong_since: since when that has not been true.
        cut_off: the operator does not reach it; the kubelet and clients do.
        unreached: when that began and ended.
        address_of: uid of the pod that has its address now, as far as the operator knows addresses;
            `STRANGER` for one of another fleet, empty while it is its own.
        garbled: its answers do not follow the protocol.
        loses_answer: its next answer to a call is lost.
        delays: a kind of calls, and how many seconds late the next one of it comes.
        grace: how many more answers the operator may get before it must have fenced the worker, which has
            reported weights that it does not have.
        by_hand: the weights that a client of its own port made it serve.
        suspect: something was wrong with it, so that it may be taken out of service.
        problem: why its container does not run.
        gated: it waits for a scheduling gate, so the API server shows no node for it.
        ended: the kubelet has ended it for good, and it is `Failed`.
        evicted: it is deleted since its node is lost.
        drain_seconds: how long its preStop hook lets requests continue, by its manifest.
    """

    worker: FakeWorker
    node: str
    owner: str = "fleet"
    quarantine: str = ""
    drains_since: datetime | None = None
    drain_seconds: float = 0
    ready: bool = False
    wrong_since: float | None = None
    deleted_at: float | None = None
    cut_off: bool = False
    unreached: list[tuple[float, float]] = field(default_factory=list)
    address_of: str = ""
    garbled: bool = False
    loses_answer: bool = False
    delays: tuple[str, float] = ("", 0.0)
    grace: int = 0
    by_hand: str | None = None
    suspect: bool = False
    problem: str = ""
    gated: bool = False
    ended: str = ""
    evicted: bool = False

    @property
    def uid(self) -> str:
        return self.worker.uid

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def ordinal(self) -> int:
        return self.worker.ordinal

    def is_ready(self, *, node_up: bool) -> bool:
        """The answer of the readiness probe at this moment."""
        return self.worker.admitted and node_up and not self.worker.hung and not self.ended

    def in_service(self, *, node_up: bool) -> bool:
        """Whether the fleet's Service may send clients to it; judged on the bad side."""
        routed = self.ready or self.is_ready(node_up=node_up)
        out = self.quarantine or self.drains_since is not None or self.ended
        return routed and not out and self.deleted_at is None

    def next_at(self, node_lost_at: float | None) -> float | None:
        """When the kubelet, or the node controller, will write something."""
        times = []
        if self.wrong_since is not None:
            times.append(self.wrong_since + self._patience_seconds(node_lost_at))
        if node_lost_at is not None and self.deleted_at is None:
            times.append(self._evicted_at(node_lost_at))
        if self.deleted_at is not None and node_lost_at is None:
            times.append(self.deleted_at + GONE_SECONDS)
        return min(times, default=None)

    def tick(self, now: float, *, node_lost_at: float | None) -> None:
        """The kubelet and the node controller look, each in its time."""
        true = self.is_ready(node_up=node_lost_at is None)
        if true == self.ready:
            self.wrong_since = None
        elif self.wrong_since is None:
            self.wrong_since = now
        patience = self._patience_seconds(node_lost_at)
        if self.wrong_since is not None and now >= self.wrong_since + patience:
            self.ready, self.wrong_since = true, None
        evicted_at = None if node_lost_at is None else self._evicted_at(node_lost_at)
        if self.deleted_at is None and evicted_at is not None and now >= evicted_at:
            self.deleted_at, self.evicted = now, True

    def _evicted_at(self, node_lost_at: float) -> float:
        return node_lost_at + NODE_SILENT_SECONDS + EVICTED_SECONDS

    def _patience_seconds(self, node_lost_at: float | None) -> float:
        """How long it takes until a change is seen."""
        if node_lost_at is not None:
            return NODE_SILENT_SECONDS
        return PROBE_SECONDS if self.worker.hung else 0.0

    def delete(self, now: float) -> None:
        """Its deletion begins."""
        if self.deleted_at is None:
            self.deleted_at = now

    def run_hook(self, now: float) -> None:
        """The kubelet runs its preStop hook; one that hangs does not hear it."""
        self.worker.tick(now)
        self.worker.drain(0 if self.worker.hung else self.drain_seconds)

    def is_gone(self, now: float, *, node_up: bool) -> bool:
        """Whether the kubelet has confirmed its end."""
        over = self.deleted_at is not None and now >= self.deleted_at + GONE_SECONDS
        return node_up and over and self.worker.drains_until is None

    def view(self, now: float) -> PodView:
        """The pod as the API server has it."""
        waits = self.ended or self.problem or self.gated
        running = not waits and now >= self.worker.started_at
        deleting = self.deleted_at is not None
        return PodView(
            uid=self.uid,
            name=self.name,
            ordinal=self.ordinal,
            revision=self.worker.revision,
            owner=self.owner,
            ip="10.0.0.1",
            node=None if self.gated else self.node,
            phase=self.ended or ("Pending" if self.gated else "Running"),
            running=running,
            started=running and self.worker.phase is not Phase.STARTING,
            ready=self.ready and running,
            deleting=deleting,
            evicted=self.evicted,
            gone_by=at(self.deleted_at + GRACE_SECONDS) if self.deleted_at is not None else None,
            restarts=self.worker.restarts,
            problem=self.problem,
            wait=GATE if self.gated else None,
            quarantine=self.quarantine,
            drains_since=self.drains_since,
        )


def pod_environment(manifest: dict[str, Any]) -> dict[str, str]:
    """The plain variables of a manifest's worker container."""
    (container,) = manifest["spec"]["containers"]
    return {v["name"]: v["value"] for v in container["env"] if "value" in v}


def has_adapter_slots(manifest: dict[str, Any]) -> bool:
    """Whether the worker of a manifest starts with slots for adapters."""
    (container,) = manifest["spec"]["containers"]
    return "--max-loras" in container["args"]


def described(pod: FakePod) -> str:
    """A pod in one line, for failures and logs."""
    worker = pod.worker
    words = [worker.name, str(worker.phase), f"label={worker.label}"]
    words += [f"staged={worker.staged}"] if worker.staged else []
    words += [f"at {worker.work.kind}"] if worker.work else []
    marks = {
        "open": worker.admitted and worker.phase is not Phase.SERVING,
        "not ready": not pod.ready,
        "gated": pod.gated,
        "hung": worker.hung,
        "cut off": pod.cut_off,
        "its address is another's": pod.address_of,
        "garbles": pod.garbled,
        "going": pod.deleted_at is not None,
        pod.ended: pod.ended,
        f"quarantined: {pod.quarantine}": pod.quarantine,
        "drains": pod.drains_since is not None,
    }
    return " ".join([*words, *(f"({mark})" for mark, holds in marks.items() if holds)])


def judged(view: PodView) -> PodView:
    """A pod of another owner is terminating (`runtime.foreign_pods`)."""
    foreign = view.owner and view.owner != "fleet"
    return replace(view, deleting=True) if foreign else view
