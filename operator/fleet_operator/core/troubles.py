"""What needs attention beside a rollout's own problems, and how it becomes a condition.

A `Trouble` is one thing that failed: a write that the API server refuses, a name that is taken, an
object that cannot be read, a defect of this program. The runtime notes troubles (`runtime.troubles`)
and `decide` adds its own; `with_troubles` is the one place that turns them into `Stalled`. Every
status is computed anew, so that the condition goes when the trouble does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from fleet_operator.api.conditions import (
    Condition,
    ConditionReason,
    ConditionType,
    condition_of,
    new_condition,
)
from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus

_NAMED_AT_MOST = 3

S = TypeVar("S", FleetStatus, WeightsStatus)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that failed.

    Fields:
        part: what failed, such as `Service policy`; a success of the same part ends the trouble.
        leaves_ready: the spec is fully in effect nevertheless, as when an Event cannot be posted.
        concerns_weights: it stands on the fleet's WeightVersions, too.
    """

    part: str
    reason: ConditionReason
    message: str
    leaves_ready: bool = False
    concerns_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A part of the operator that raised. `error`: for the log; conditions name its type only,
    since its text may hold anything.
    """

    part: str
    error: Exception

    def trouble(self) -> Trouble:
        """The defect as a trouble."""
        return Trouble(
            part=self.part,
            reason=ConditionReason.INTERNAL_ERROR,
            message=(
                f"{self.part} failed with {type(self.error).__name__}, a defect of rlfleet. The other "
                "parts go on, and pauses are renewed. The operator's log holds the traceback: report "
                "it; until then undo the last change of the spec"
            ),
            concerns_weights=True,
        )


def deaf_workers(pods: Sequence[str]) -> tuple[Trouble, ...]:
    """The trouble that these pods have obeyed an epoch of the highest term there is, if there are
    any. `pods`: their names.
    """
    if not pods:
        return ()
    named = ", ".join(pods[:_NAMED_AT_MOST])
    more = f" and {len(pods) - _NAMED_AT_MOST} more" if len(pods) > _NAMED_AT_MOST else ""
    return (
        Trouble(
            part="epochs",
            reason=ConditionReason.EPOCH_EXHAUSTED,
            message=(
                f"{named}{more}: refused every call, since an epoch of the highest term there is was "
                "obeyed. Another client of the admin port, or the worker image, has made it up. "
                "Delete these pods: new ones begin again"
            ),
        ),
    )


class Parts:
    """Runs the parts of a decision: one that raises becomes a defect, and the others go on."""

    def __init__(self) -> None:
        self.defects: list[Defect] = []

    def run(self, part: str, work: Callable[[], T], instead: Callable[[], T]) -> T:
        """The result of `work`, or of `instead` if `work` raises."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - any defect of one part
            self.defects.append(Defect(part=part, error=error))
            return instead()


def with_troubles(
    status: S,
    before: Sequence[Condition],
    troubles: Sequence[Trouble],
    *,
    generation: int,
    now: datetime,
) -> S:
    """The status with `Stalled` for these troubles. `before`: the conditions of the last status.

    A reason that the status has for `Stalled` already stays first; nothing is left out of the
    message. `Ready` becomes False unless all troubles leave it.
    """
    if not troubles:
        return status
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    messages = [t.message for t in troubles]
    reason = troubles[0].reason
    if stalled is not None:
        reason = stalled.reason
        messages.insert(0, stalled.message)
    made = {c.type: c for c in status.conditions}
    made[ConditionType.STALLED] = new_condition(
        before,
        ConditionType.STALLED,
        holds=True,
        reason=reason,
        message=" Also: ".join(messages),
        generation=generation,
        now=now,
    )
    serious = next((t for t in troubles if not t.leaves_ready), None)
    ready = made.get(ConditionType.READY)
    if serious is not None and (ready is None or ready.status != "False"):
        made[ConditionType.READY] = new_condition(
            before,
            ConditionType.READY,
            holds=False,
            reason=serious.reason,
            message=serious.message,
            generation=generation,
            now=now,
        )
    return status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": tuple(made[kind] for kind in ConditionType if kind in made),
        }
    )


def kept_fleet_status(before: FleetStatus) -> FleetStatus:
    """The last status of a fleet of which no new one can be computed: without its `Stalled`, which
    is added anew.
    """
    return before.model_copy(update={"conditions": _without_stalled(before.conditions)})


def kept_weights_status(before: WeightsStatus, *, generation: int) -> WeightsStatus:
    """The last status of a WeightVersion of which no new one can be computed.

    Phase and times stay, so that time-outs go on. A version that was given up in an earlier
    generation is not given up in this one.
    """
    kept = before.model_copy(update={"conditions": _without_stalled(before.conditions)})
    halted_before = kept.phase is RolloutPhase.HALTED and kept.observed_generation != generation
    return kept.model_copy(update={"phase": RolloutPhase.PENDING}) if halted_before else kept


def _without_stalled(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    return tuple(c for c in conditions if c.type is not ConditionType.STALLED)
