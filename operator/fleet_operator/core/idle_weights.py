"""The statuses of WeightVersions that steer nothing.

Such a status changes only with its WeightVersion, or with the reason why that steers nothing. So each
decision compares it, and computes it only if it must say something else. The problems of a fleet are
reported by the fleet and by the WeightVersions that steer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import (
    Parts,
    Problem,
    joined_messages,
    kept_weights_status,
    reports,
    with_problems,
)
from fleet_operator.core.steering import LOOKED_AT, NotSteering, not_steering, too_many
from fleet_operator.core.unreadable import problems_of_weights, unread_status
from fleet_operator.core.weights_status import refused_status
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import WeightsStatus


def idle_statuses(parts: Parts, observed: FleetObserved, now: datetime) -> dict[str, WeightsStatus]:
    """Returns the statuses of the WeightVersions that steer nothing, by uid."""
    found: dict[str, WeightsStatus] = {}

    def run(weights: WeightsView, compute: Callable[[], WeightsStatus | None]) -> None:
        part = f"the status of WeightVersion {weights.name}"
        status = parts.run(part, compute, lambda: _failed(weights, parts, now))
        if status is not None:
            found[weights.uid] = status

    for each in observed.weights:
        run(each, lambda w=each: _idle(observed, w, now))  # type: ignore[misc]  # mypy cannot infer a default
    refusal = too_many(observed.name)
    found |= {w.uid: idle_status(w, refusal, now) for w in observed.beyond}
    return found | {u.uid: unread_status(u, now) for u in observed.unread}


def idle_status(
    weights: WeightsView | UnreadWeights, refusal: NotSteering, now: datetime
) -> WeightsStatus:
    """Returns the last status if it says this already, else a new one."""
    if _says(weights, refusal):
        return weights.status
    return with_problems(
        refused_status(weights, *refusal, now=now),
        weights.status.conditions,
        _own_problems(weights),
        generation=weights.generation,
        now=now,
    )


def says_too_many(weights: WeightsView | UnreadWeights) -> bool:
    """Whether the last status says that the fleet does not look at this WeightVersion."""
    return _says(weights, too_many(weights.fleet))


def problems_of_number(observed: FleetObserved) -> tuple[Problem, ...]:
    """Returns what the fleet reports about WeightVersions that it does not look at."""
    if not observed.beyond_count:
        return ()
    return (
        Problem(
            part="WeightVersions",
            reason=ConditionReason.TOO_MANY,
            message=(
                f"{LOOKED_AT + observed.beyond_count} WeightVersions name fleet {observed.name}, and it "
                f"looks at its oldest {LOOKED_AT} only. Delete those that it does not need"
            ),
            leaves_ready=True,
        ),
    )


def _idle(observed: FleetObserved, weights: WeightsView, now: datetime) -> WeightsStatus | None:
    """None if it steers."""
    refusal = not_steering(observed, weights)
    return None if refusal is None else idle_status(weights, refusal, now)


def _failed(weights: WeightsView, parts: Parts, now: datetime) -> WeightsStatus:
    """The status of a WeightVersion of which it is not known whether it steers: that raised."""
    return with_problems(
        kept_weights_status(weights.status, generation=weights.generation),
        weights.status.conditions,
        [parts.defects[-1].problem()],
        generation=weights.generation,
        now=now,
    )


def _says(weights: WeightsView | UnreadWeights, refusal: NotSteering) -> bool:
    reason, message = refusal
    own = [p.message for p in _own_problems(weights)]
    return reports(
        weights.status,
        reason,
        joined_messages(message, own) if own else message,
        generation=weights.generation,
    )


def _own_problems(weights: WeightsView | UnreadWeights) -> Sequence[Problem]:
    return problems_of_weights(weights) if isinstance(weights, WeightsView) else ()
