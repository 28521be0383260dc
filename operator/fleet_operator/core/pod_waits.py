"""Waits of pods that the cluster may still end: for a lost node, a gate, a new node, volumes, an image.

A wait counts as progress for `spec.progressDeadlineSeconds`. After that it needs attention. A
scheduling gate belongs to the component that has set it, such as a job queue: a pod behind a gate
never needs attention.

The pod's own start of a wait comes from the clock of another machine, and can be missing or wrong: a
removed gate does not change the transition time of `PodScheduled`. So the time that this leader has
seen, on its monotonic clock, counts more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from fleet_operator.counts import agree, counted
from rlfleet_resources.reasons import ConditionReason


class Awaited(Enum):
    """The kinds of waits, in the order of a pod's start behind a lost node, with the reason of the fleet that waits."""

    LOST_NODE = ("a node that does not report", ConditionReason.NODE_LOST)
    GATE = ("a scheduling gate", ConditionReason.WAITING_FOR_QUOTA)
    NODE = ("a node", ConditionReason.WAITING_FOR_NODE)
    VOLUMES = ("volumes and network", ConditionReason.WAITING_FOR_VOLUME)
    IMAGE = ("an image", ConditionReason.WAITING_FOR_IMAGE)

    def __init__(self, text: str, reason: ConditionReason) -> None:
        self.text, self.reason = text, reason

    @property
    def step(self) -> int:
        """The number of the step of a pod's start, from 0."""
        return list(Awaited).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWait:
    """One wait of one pod.

    Fields:
        reason: as the cluster reports it, such as `Unschedulable`.
        message: as the cluster reports it; may be empty.
        since: when it began, as the pod reports it; None if the pod does not.
        watched_seconds: how long this leader has seen the wait.
        saw_it_begin: this leader has seen the pod before the wait.
    """

    awaited: Awaited
    reason: str
    message: str = ""
    since: datetime | None = None
    watched_seconds: float = 0
    saw_it_begin: bool = False

    def lasted_seconds(self, now: datetime) -> float:
        """How long the wait has lasted.

        Clocks differ and jump. So this leader alone measures a wait that it saw begin, and no wait
        is shorter than the time that the leader has seen.
        """
        if self.saw_it_begin or self.since is None:
            return self.watched_seconds
        return max((now - self.since).total_seconds(), self.watched_seconds)

    def is_overdue(self, deadline_seconds: float, now: datetime) -> bool:
        """Whether it needs attention."""
        return self.awaited is not Awaited.GATE and self.lasted_seconds(now) >= deadline_seconds

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def furthest_behind(pods: Sequence[tuple[str, PodWait]]) -> tuple[str, PodWait] | None:
    """The first pod that waits for the earliest step of its start: all later steps wait for it, too.

    `pods`: name and wait of each. Without pods None.
    """
    return min(pods, key=lambda pod: pod[1].awaited.step, default=None)


def waiting(pods: Sequence[tuple[str, PodWait]]) -> str:
    """The waits of pods as one message: `1 pod waits for a node. policy-2: Unschedulable: …`.

    `pods`: name and wait of each. Without pods the message is empty.
    """
    behind = furthest_behind(pods)
    if behind is None:
        return ""
    first, wait = behind
    alike = sum(w.awaited is wait.awaited for _, w in pods)
    others = len(pods) - alike
    more = f", {others} for something else" if others else ""
    verb = agree(alike, "waits", "wait")
    return f"{counted(alike, 'pod')} {verb} for {wait.awaited.text}{more}. {first}: {wait}"
