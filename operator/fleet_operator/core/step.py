"""What a strategy is given and what it answers: the small interface between the rollout planner
and the strategies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import CanaryVerdict, RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Quarantine, WorkerCall
from fleet_operator.core.adapter_goals import AdapterGoal
from fleet_operator.core.amounts import rounded_down
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_worker.protocol import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """A rollout at one moment.

    Fields:
        target: what the trainer wants.
        applied: what the members served last with one voice.
        halted: the target failed in this generation; it is not tried again.
        suspended: nothing new is begun; what holds requests is brought to its end.
        members: admitted workers, and those in service that do not answer.
        joiners: workers that run with a closed latch.
        one_voice: the strategy never lets two versions generate at once.
        replicas: how many workers the fleet should have, without those that a queue holds back
            (`FleetObserved.expected_workers`).
        phase, phase_seconds: the recorded phase of this target and how long it has lasted.
        verdict: what the canaries said last.
        adapters: what joiners must have before they are admitted.
        rollout_seconds: how long this attempt at the target has lasted; what failed before it
            does not count.
    """

    target: Target
    applied: Target
    halted: bool
    suspended: bool
    settings: Rollout
    members: tuple[WorkerView, ...]
    joiners: tuple[WorkerView, ...]
    one_voice: bool
    replicas: int
    phase: RolloutPhase
    phase_seconds: float
    rollout_seconds: float
    verdict: CanaryVerdict | None = None
    adapters: tuple[AdapterGoal, ...] = ()
    held: tuple[WorkerView, ...] = field(init=False, compare=False, repr=False)
    """Members that hold their requests."""

    def __post_init__(self) -> None:
        held = tuple(m for m in self.members if m.standing is Standing.HELD)
        object.__setattr__(self, "held", held)

    def failure_of(self, worker: WorkerView, goal: Target) -> Failure | None:
        """Why a worker could not take the goal in this attempt, if it could not."""
        return calls.failure_of(worker, goal, within_seconds=self.rollout_seconds)

    def failed_lately(self, worker: WorkerView, goal: Target) -> bool:
        """Whether it should not be asked again yet. A new attempt does not wait for an old one."""
        return calls.failed_lately(worker, goal, within_seconds=self.rollout_seconds)

    @property
    def may_fail(self) -> int:
        """How many workers may fail to take the target before it is given up."""
        return rounded_down(self.settings.max_failures, self.replicas)

    def agrees_on(self, weights: Target) -> bool:
        """Whether all members have these weights, and none is putting others into its engine."""
        return all(m.has_loaded(weights) and not m.loads_others_than(weights) for m in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a rollout cannot go on.

    Fields:
        halt: the target is given up in this generation; otherwise it is tried again by itself.
    """

    reason: ConditionReason
    message: str
    halt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next step of a rollout.

    Fields:
        goal: the weights that this step works towards; differs from the target while a rollout
            that was overtaken is brought to its end, or after a halt.
        verdict: what the canaries have just said.
        disturbed: members are held; the fleet should not be changed otherwise now.
        awaits_source: the goal's directory does not exist yet, and nothing is done but to look for it.
        requeue_after_seconds: look again after this long even if nothing happens.
    """

    goal: Target
    phase: RolloutPhase
    actions: tuple[WorkerCall | Quarantine, ...] = ()
    note: str = ""
    problem: Problem | None = None
    failed: tuple[str, ...] = ()
    verdict: CanaryVerdict | None = None
    disturbed: bool = False
    awaits_source: bool = False
    requeue_after_seconds: float | None = None


Strategy = Callable[[RolloutView], Step]
