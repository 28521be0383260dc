"""Statuses of objects that the operator cannot read, and of a fleet that it cannot decide on.

While the spec of a fleet or of a WeightVersion cannot be read, the last readable one stays in effect as if
suspended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fleet_operator.api.fleet import Staleness
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import (
    Problem,
    joined_messages,
    kept_fleet_status,
    kept_weights_status,
    reports,
    with_problems,
)
from fleet_operator.core.staleness import with_unheard
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.status import Status
from rlfleet_resources.weights_status import WeightsStatus

_NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Statuses of a fleet without a decision. `weights`: by uid."""

    fleet: FleetStatus
    weights: Mapping[str, WeightsStatus]


def report_undecided(
    name: str,
    *,
    generation: int,
    unreadable: str,
    unreadable_reason: ConditionReason = ConditionReason.INVALID_SPEC,
    status: FleetStatus,
    weights: Sequence[WeightsView | UnreadWeights],
    problems: Sequence[Problem],
    staleness: Staleness | None,
    now: datetime,
) -> Report:
    """Returns the statuses of a fleet whose spec or pods could not be read so far. Its workers get no
    calls.

    Pauses are not renewed either: only the spec shows whether a pause is the operator's or a
    trainer's, and only the pods show which workers there are.

    `unreadable`: why the spec cannot be read; empty if it can. `unreadable_reason`: see `FleetObserved`.
    `staleness`: of the spec; None if that cannot be read.
    """
    message = (
        f"generation {generation} of InferenceFleet {name} cannot be read: {unreadable}. The operator "
        "has read no earlier generation, so it does not touch the workers. They do not hear which version is "
        "desired: with spec.staleness.action Refuse they answer 429 after maxLagSeconds. Repair the spec"
    )
    found = [*unread_parts(status), *problems]
    if unreadable:
        found.insert(0, _invalid("spec", unreadable_reason, message, concerns_weights=True))
    concerning = [t for t in found if t.concerns_weights]
    fleet = with_problems(
        kept_fleet_status(status), status.conditions, found, generation=generation, now=now
    )
    return Report(
        fleet=with_unheard(fleet, status.conditions, staleness, generation=generation, now=now),
        weights={w.uid: _kept_with(w, concerning, now) for w in weights},
    )


def suspend_unreadable(observed: FleetObserved) -> FleetObserved:
    """Suspends WeightVersions that cannot be read; all of them if the fleet cannot be read."""
    if not observed.unreadable and not any(w.unreadable for w in observed.weights):
        return observed
    return replace(
        observed,
        weights=tuple(
            replace(w, spec=w.spec.model_copy(update={"suspend": True}))
            if w.unreadable or observed.unreadable
            else w
            for w in observed.weights
        ),
    )


def problems_of(observed: FleetObserved) -> tuple[Problem, ...]:
    """Returns what the fleet reports about specs that cannot be read."""
    found = []
    if observed.unreadable:
        message = (
            f"generation {observed.generation} of InferenceFleet {observed.name} cannot be read: "
            f"{observed.unreadable}. The last readable spec stays in effect: running rollouts end, no "
            "new one begins, and no pod changes. Repair the spec"
        )
        reason = observed.unreadable_reason
        found.append(_invalid("spec", reason, message, concerns_weights=True))
    found += [
        _invalid(f"WeightVersion {u.name}", u.unreadable_reason, _unread_message(u))
        for u in observed.unread
    ]
    return (*found, *unread_parts(observed.status))


def problems_of_weights(weights: WeightsView) -> tuple[Problem, ...]:
    """Returns what a WeightVersion reports about its own spec and status."""
    parts = unread_parts(weights.status)
    if not weights.unreadable:
        return parts
    message = (
        f"generation {weights.generation} of WeightVersion {weights.name} cannot be read: "
        f"{weights.unreadable}. The last readable spec stays in effect, and no new rollout begins. "
        "Repair the spec"
    )
    return (_invalid("spec", weights.unreadable_reason, message), *parts)


def unread_parts(status: Status) -> tuple[Problem, ...]:
    """Returns what an object reports about a status of which parts cannot be read."""
    parts = status.unread_parts
    if not parts:
        return ()
    shown = ", ".join(parts[:_NAMED_AT_MOST])
    more = f" and {len(parts) - _NAMED_AT_MOST} more" if len(parts) > _NAMED_AT_MOST else ""
    return (
        Problem(
            part="status",
            reason=ConditionReason.STATUS_UNREADABLE,
            message=(
                f"this release of the operator cannot read a part of the status: {shown}{more}. Another "
                "release has written it. It stays as it is, and a version whose pin cannot be read is "
                "refused. Run the operator of that release, or a later one"
            ),
            leaves_ready=True,
        ),
    )


def unread_status(weights: UnreadWeights, now: datetime) -> WeightsStatus:
    """Returns the status of a WeightVersion of which no generation could be read: the last one if it says
    so already.
    """
    problem = _invalid("spec", weights.unreadable_reason, _unread_message(weights))
    return _kept_with(weights, [problem], now)


def _kept_with(
    weights: WeightsView | UnreadWeights, problems: Sequence[Problem], now: datetime
) -> WeightsStatus:
    """The last status with these problems alone; itself if it reports them already."""
    before, generation = weights.status, weights.generation
    if problems:
        message = joined_messages(None, [p.message for p in problems])
        if reports(before, problems[0].reason, message, generation=generation):
            return before
    kept = kept_weights_status(before, generation=generation)
    return with_problems(kept, before.conditions, problems, generation=generation, now=now)


def _unread_message(weights: UnreadWeights) -> str:
    return (
        f"generation {weights.generation} of WeightVersion {weights.name} cannot be read: "
        f"{weights.unreadable}. It has no effect, and the fleet keeps its weights. Repair the spec"
    )


def _invalid(
    part: str, reason: ConditionReason, message: str, *, concerns_weights: bool = False
) -> Problem:
    return Problem(
        part=part,
        reason=reason,
        message=message,
        concerns_weights=concerns_weights,
    )
