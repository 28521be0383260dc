"""What a pod waits for that the cluster may still bring: a gate, a node, its volumes, an image.

A wait is progress until `spec.progressDeadlineSeconds` have passed; then it needs attention. A
scheduling gate belongs to whoever has set it, such as a queue of jobs: a pod behind one never needs
attention.

The pod says since when it waits, by the wall clock of another machine, and not always: a gate that
is removed does not move the transition time of `PodScheduled`. So what this leader has seen itself
counts more, on its monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from fleet_operator.core.counts import agree, counted


class Awaited(Enum):
    """What a pod waits for."""

    GATE = "a scheduling gate"
    NODE = "a node"
    VOLUMES = "its volumes and its network"
    IMAGE = "an image"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWait:
    """One wait of one pod.

    Fields:
        reason: the cluster's own word, such as `Unschedulable`.
        message: the cluster's own sentence; may be empty.
        since: when it began by the pod's own account; None if the pod does not say.
        watched_seconds: how long this leader has seen it.
        saw_it_begin: this leader has seen the pod without it before.
    """

    awaited: Awaited
    reason: str
    message: str = ""
    since: datetime | None = None
    watched_seconds: float = 0
    saw_it_begin: bool = False

    def lasted_seconds(self, now: datetime) -> float:
        """How long it has lasted. Clocks differ and jump: a wait that this leader saw begin is
        measured by the leader alone, and no wait is shorter than what the leader has seen of it.
        """
        if self.saw_it_begin or self.since is None:
            return self.watched_seconds
        return max((now - self.since).total_seconds(), self.watched_seconds)

    def is_overdue(self, deadline_seconds: float, now: datetime) -> bool:
        """Whether it needs attention."""
        return self.awaited is not Awaited.GATE and self.lasted_seconds(now) >= deadline_seconds

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def waiting(pods: Sequence[tuple[str, PodWait]]) -> str:
    """What pods wait for, in one clause: `1 pod waits for a node. policy-2: Unschedulable: …`.

    `pods`: name and wait; empty gives an empty text.
    """
    if not pods:
        return ""
    first, wait = pods[0]
    alike = sum(w.awaited is wait.awaited for _, w in pods)
    others = len(pods) - alike
    more = f", {others} for something else" if others else ""
    verb = agree(alike, "waits", "wait")
    return f"{counted(alike, 'pod')} {verb} for {wait.awaited.value}{more}. {first}: {wait}"
