"""Problems outside of a rollout, and how they become the condition Stalled.

A `Problem` is one failure: a write that the API server refuses, a taken name, an unreadable object, a
defect of the operator. The runtime notes problems (`runtime.problems`)
and `decide` adds its own. Only `with_problems` turns them into `Stalled`. Each decision computes the
whole status, so that the condition disappears with its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from fleet_operator.counts import counted
from rlfleet_resources.conditions import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    condition_of,
    new_condition,
    shortened,
)
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

_NAMED_AT_MOST = 3
_ALSO = " Also: "
_JOINED_AT_MOST = 5
_FIRST_CHARACTERS = 600

S = TypeVar("S", FleetStatus, WeightsStatus)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that failed.

    Fields:
        part: the part that failed, such as `Service policy`; its next success ends the problem.
        leaves_ready: the spec is in effect nevertheless, as when an Event cannot be posted.
        concerns_weights: the WeightVersions of the fleet report it, too.
        adapter: only those of this adapter, or of the base weights (empty); None: all.
    """

    part: str
    reason: ConditionReason
    message: str
    leaves_ready: bool = False
    concerns_weights: bool = False
    adapter: str | None = None

    def concerns(self, adapter: str) -> bool:
        """Whether the WeightVersion of an adapter, or of the base weights (empty), reports it."""
        return self.concerns_weights and self.adapter in {None, adapter}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A part of the operator that raised.

    Fields:
        error: for the log. Conditions name only its type, because its text may hold secrets.
    """

    part: str
    error: Exception

    def problem(self) -> Problem:
        """The problem that reports this defect."""
        return Problem(
            part=self.part,
            reason=ConditionReason.INTERNAL_ERROR,
            message=(
                f"{self.part} failed with {type(self.error).__name__}, a defect of rlfleet. The other "
                "parts continue, and pauses are renewed. Report the traceback from the operator's "
                "log; until it is repaired, undo the last change of the spec"
            ),
            concerns_weights=True,
        )


def exhausted_epochs(pods: Sequence[str]) -> tuple[Problem, ...]:
    """The problem that pods have accepted an epoch far beyond the Lease's; empty without pods.

    `pods`: their names.
    """
    if not pods:
        return ()
    named = ", ".join(pods[:_NAMED_AT_MOST])
    more = f" and {len(pods) - _NAMED_AT_MOST} more" if len(pods) > _NAMED_AT_MOST else ""
    return (
        Problem(
            part="epochs",
            reason=ConditionReason.EPOCH_EXHAUSTED,
            message=(
                f"{named}{more}: every call is refused, because the worker has accepted an epoch far "
                "beyond the leader's. Another client of the admin port, or the worker image, has sent it. "
                "Delete these pods: new ones accept calls again"
            ),
        ),
    )


class Parts:
    """Runs the parts of a decision. A part that raises becomes a defect, and the others still run."""

    def __init__(self) -> None:
        self.defects: list[Defect] = []

    def run(self, part: str, work: Callable[[], T], instead: Callable[[], T]) -> T:
        """The result of `work`, or of `instead` if `work` raises."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - any defect of one part
            self.defects.append(Defect(part=part, error=error))
            return instead()


def with_problems(
    status: S,
    before: Sequence[Condition],
    problems: Sequence[Problem],
    *,
    generation: int,
    now: datetime,
) -> S:
    """The status with `Stalled` for these problems. `before`: the conditions of the last status.

    If the status is already stalled, its reason stays and its message comes first. A long message
    leaves room for the others, so that each names its object and remedy. `Ready` becomes
    False unless every problem leaves it, and then has the reason and the message of `Stalled`: `kubectl get`
    shows those of `Ready`.
    """
    if not problems:
        return status
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    messages = [t.message for t in problems]
    reason, first = problems[0].reason, None
    if stalled is not None:
        reason, first = stalled.reason, stalled.message
    made = {c.type: c for c in status.conditions}
    made[ConditionType.STALLED] = new_condition(
        before,
        ConditionType.STALLED,
        is_true=True,
        reason=reason,
        message=joined_messages(first, messages),
        generation=generation,
        now=now,
    )
    if not all(t.leaves_ready for t in problems):
        made[ConditionType.READY] = new_condition(
            before,
            ConditionType.READY,
            is_true=False,
            reason=reason,
            message=made[ConditionType.STALLED].message,
            generation=generation,
            now=now,
        )
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": tuple(made[kind] for kind in ConditionType if kind in made),
        }
    )


def reports(
    status: FleetStatus | WeightsStatus, reason: ConditionReason, message: str, *, generation: int
) -> bool:
    """Whether a status is stalled for exactly this, in this generation, and not ready."""
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    ready = condition_of(status.conditions, ConditionType.READY)
    if stalled is None or ready is None or ready.status != "False":
        return False
    said = (status.observed_generation, stalled.reason, stalled.message)
    return said == (generation, reason, shortened(message))


def joined_messages(first: str | None, messages: Sequence[str]) -> str:
    """The messages as one. Those that have more than an even share of the characters are shortened.

    `first`: comes first. Later decisions may have it from here only (`alone`), so it keeps more than an even
    share.
    """
    named = list(messages[:_JOINED_AT_MOST])
    if more := len(messages) - len(named):
        named.append(f"{counted(more, 'more problem')}.")
    room = MAX_MESSAGE_CHARACTERS - len(_ALSO) * (len(named) - 1)
    start = "" if first is None else shortened(first, _FIRST_CHARACTERS) + _ALSO
    room -= len(start)
    by_length = sorted(range(len(named)), key=lambda n: len(named[n]))
    for left, n in zip(range(len(named), 0, -1), by_length, strict=True):
        named[n] = shortened(named[n], room // left)
        room -= len(named[n])
    return start + _ALSO.join(named)


def kept_fleet_status(before: FleetStatus) -> FleetStatus:
    """The last status of a fleet, for a decision that cannot compute a new one.

    Without `Stalled`, which the caller adds again.
    """
    return before.model_copy(update={"conditions": _without_stalled(before.conditions)})


def kept_weights_status(before: WeightsStatus, *, generation: int) -> WeightsStatus:
    """The last status of a WeightVersion, for a decision that cannot compute a new one.

    Phase and times stay, so that timeouts continue. A version that was abandoned in an earlier
    generation is pending in this one. The reason of another halt stays: later decisions repeat it.
    """
    halted = before.phase is RolloutPhase.HALTED
    if halted and before.observed_generation == generation:
        return before.model_copy(update={"conditions": tuple(map(alone, before.conditions))})
    kept = before.model_copy(update={"conditions": _without_stalled(before.conditions)})
    return kept.model_copy(update={"phase": RolloutPhase.PENDING}) if halted else kept


def alone(condition: Condition) -> Condition:
    """The condition without the problems that `with_problems` has added to it."""
    return condition.model_copy(update={"message": condition.message.partition(_ALSO)[0]})


def _without_stalled(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    return tuple(c for c in conditions if c.type is not ConditionType.STALLED)
