"""The interface between the rollout planner and the strategies: a view in, a step out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_failures
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import NO_WORKERS, Workers
from fleet_operator.core.lora_goals import JoinersLora
from fleet_operator.core.percentages import rounded_down
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.staging import max_staging
from fleet_operator.core.strategies.trials import Trial
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import Failure
from rlfleet_resources.fleet_status import Transition, TransitionStrategy
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import CanaryVerdict, RolloutPhase

_PEER_GROUPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """A rollout at one moment.

    Fields:
        desired: the desired weights.
        applied: the weights that all members served last.
        halted: the desired version was abandoned in this generation.
        suspended: the rollout starts nothing new, and only finishes what holds requests.
        strategy: carries out swaps now: that of the transition, or else that of the spec.
        transition: the operation in progress; None while no worker is away for one.
        is_superseded: `desired` is a version that a newer one has superseded, and that the rollout must
            finish. It is not abandoned.
        members: admitted workers, and workers in service that do not answer.
        joining: workers that join, which run with a closed latch.
        forbids_mixing: the strategy never lets two versions generate at once.
        replicas: workers that the fleet should have, without those that a queue holds back
            (`FleetObserved.expected_workers`).
        phase, phase_seconds: the recorded phase of the desired version, and how long it has lasted.
        verdict: the last verdict on the canaries.
        trials: of the canaries of the desired version so far.
        lora_goals: the LoRA adapters that joining workers need, or must not have, before they are admitted.
        rollout_seconds: how long this attempt has lasted; earlier failures do not count.
        clock_seconds: the time on the leader's monotonic clock.
        reads_from_peers: workers read versions from each other (`peers`).
        workers: all workers of the fleet; those that are neither members nor joining workers may read a
            checkpoint, too.
    """

    desired: Checkpoint
    applied: Checkpoint
    halted: bool
    suspended: bool
    settings: Rollout
    members: Workers
    joining: Workers
    forbids_mixing: bool
    replicas: int
    phase: RolloutPhase
    phase_seconds: float
    rollout_seconds: float
    verdict: CanaryVerdict | None = None
    trials: tuple[Trial, ...] = ()
    lora_goals: tuple[JoinersLora, ...] = ()
    workers: Workers = NO_WORKERS
    strategy: TransitionStrategy = "Synchronized"
    transition: Transition | None = None
    is_superseded: bool = False
    reads_from_peers: bool = False
    clock_seconds: float = 0.0
    held: Workers = field(init=False, compare=False, repr=False)
    """Members that hold their requests."""

    def __post_init__(self) -> None:
        for name in ("members", "joining", "workers"):
            object.__setattr__(self, name, Workers.of(getattr(self, name)))
        held = self.members.where(lambda f: f.standing is Standing.HELD)
        object.__setattr__(self, "held", held)

    @property
    def there(self) -> Workers:
        """Members and joining workers: all that may load weights."""
        return self.workers.where(lambda f: f.standing is not Standing.ABSENT)

    def failure_of(self, worker: WorkerView, goal: Checkpoint) -> Failure | None:
        """Why a worker could not take the goal in this attempt, if it could not."""
        return worker_failures.failure_of(worker, goal, within_seconds=self.rollout_seconds)

    def failed_lately(self, worker: WorkerView, goal: Checkpoint) -> bool:
        """Whether the worker waits for a retry after a failure in this attempt."""
        return worker_failures.failed_lately(worker, goal, within_seconds=self.rollout_seconds)

    @property
    def may_fail(self) -> int:
        """How many workers may fail to load the desired version before it is abandoned."""
        return rounded_down(self.settings.max_failures, self.replicas)

    @property
    def max_staging(self) -> int | None:
        """How many workers may read one checkpoint at once; None if any number may."""
        return max_staging(self.settings, self.replicas)

    def staging_seconds(self, workers: int | None = None) -> float:
        """Seconds that a number of workers may take to stage, by default all of them.

        It is one timeout for each group of `maxStaging`: a worker that waits for its turn is not late. With
        peers there are three: those that read the store, the others, and those that lost a peer.
        """
        if workers is None:
            workers = max(self.replicas, len(self.members) + len(self.joining))
        groups = 1 if self.max_staging is None else ceil(workers / self.max_staging)
        if self.reads_from_peers:
            groups = _PEER_GROUPS
        return float(self.settings.timeouts.stage_seconds * max(groups, 1))

    def agrees_on(self, weights: Checkpoint) -> bool:
        """Whether all members have these weights, and none is loading others."""
        return self.members.all(
            lambda f: f.has_loaded(weights) and not f.loads_others_than(weights)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProblem:
    """Why a rollout cannot continue.

    Fields:
        halt: the desired version is abandoned in this generation; otherwise the operator retries.
    """

    reason: ConditionReason
    message: str
    halt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next step of a rollout.

    Fields:
        goal: the weights that this step works towards. They differ from the desired weights while a
            superseded rollout finishes, and after a halt.
        verdict: the new verdict on the canaries, if there is one.
        canaries: the workers that judge the desired version.
        holds_requests: members are held or are about to be; the pods should not be changed now.
        awaits_source: the directory of the goal does not exist yet; workers only look for it.
        requeue_after_seconds: decide again after this time, even without a change.
        waiting: the workers whose calls are not permitted yet, and why; empty without any.
    """

    goal: Checkpoint
    phase: RolloutPhase
    actions: tuple[WorkerCall | Quarantine, ...] = ()
    note: str = ""
    problem: RolloutProblem | None = None
    failed: tuple[str, ...] = ()
    verdict: CanaryVerdict | None = None
    canaries: tuple[WorkerView, ...] = ()
    holds_requests: bool = False
    awaits_source: bool = False
    requeue_after_seconds: float | None = None
    waiting: str = ""

    @property
    def told(self) -> str:
        """The note, and what workers wait for."""
        return self.with_waiting(self.note)

    def with_waiting(self, message: str) -> str:
        """The message, and what workers wait for."""
        return "; ".join(filter(None, (message, self.waiting))) if self.waiting else message


Strategy = Callable[[RolloutView], Step]
