"""What is worth an Event: differences between two statuses, never a path through the code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fleet_operator.api.conditions import Condition, ConditionReason, ConditionType, condition_of
from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import HistoryEntry, WeightsStatus
from fleet_operator.core.counts import agree
from fleet_operator.core.identity import label


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One Event in the making."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def fleet_transitions(before: FleetStatus, after: FleetStatus) -> list[Transition]:
    """Events of a fleet."""
    found = _stalls(before.conditions, after.conditions)
    was = condition_of(before.conditions, ConditionType.AVAILABLE)
    now = condition_of(after.conditions, ConditionType.AVAILABLE)
    if was is not None and now is not None and was.status != now.status:
        kind: Literal["Normal", "Warning"] = "Normal" if now.status == "True" else "Warning"
        found.append(Transition(type=kind, reason=now.reason, message=now.message))
    return found


def weights_transitions(before: WeightsStatus, after: WeightsStatus) -> list[Transition]:
    """Events of a WeightVersion."""
    found = _stalls(before.conditions, after.conditions)
    said = after.canary
    if said is not None and said != before.canary:
        kind: Literal["Normal", "Warning"] = "Normal" if said.passed else "Warning"
        reason = "CanaryPassed" if said.passed else ConditionReason.CANARY_REFUSED
        found.insert(0, Transition(type=kind, reason=reason, message=said.message))
    unchanged = condition_of(after.conditions, ConditionType.WEIGHTS_UNCHANGED)
    was = condition_of(before.conditions, ConditionType.WEIGHTS_UNCHANGED)
    # Each version is warned of, also one after another.
    if unchanged is not None and (was is None or before.desired_version != after.desired_version):
        found.append(
            Transition(
                type="Warning",
                reason=ConditionType.WEIGHTS_UNCHANGED,
                message=unchanged.message,
            )
        )
    newest = just_applied(before, after)
    if newest is not None:
        workers = agree(after.workers.total, "worker", "workers")
        told = (
            f"version {label(newest.version, newest.run_id)} on {after.workers_applied} {workers} after "
            f"{newest.total_seconds:.2f} s; no worker paused longer than "
            f"{newest.max_worker_pause_seconds:.3f} s"
        )
        found.append(Transition(type="Normal", reason="WeightsApplied", message=told))
    return found


def just_applied(before: WeightsStatus, after: WeightsStatus) -> HistoryEntry | None:
    """The rollout that has just come to its end, if one has."""
    known = {(e.version, e.run_id, e.started_at) for e in before.history}
    newest = after.history[0] if after.history else None
    if newest is None or newest.result != "Applied":
        return None
    return None if (newest.version, newest.run_id, newest.started_at) in known else newest


def _stalls(before: Iterable[Condition], after: Iterable[Condition]) -> list[Transition]:
    was = condition_of(before, ConditionType.STALLED)
    now = condition_of(after, ConditionType.STALLED)
    if now is not None and (was is None or was.reason != now.reason):
        return [Transition(type="Warning", reason=now.reason, message=now.message)]
    if was is not None and now is None and was.reason is not ConditionReason.WORKERS_FAILING:
        told = f"{was.reason} is over"
        return [Transition(type="Normal", reason="Recovered", message=told)]
    return []


def is_urgent(before: FleetStatus | WeightsStatus, after: FleetStatus | WeightsStatus) -> bool:
    """Whether a status must be written at once; mere progress may wait and be folded."""
    was = (before.observed_generation, before.desired_version, before.desired_run_id)
    if was != (after.observed_generation, after.desired_version, after.desired_run_id):
        return True
    # Workers are not asked to load before a pin is stored.
    if getattr(after, "pinned", None) != getattr(before, "pinned", None):
        return True
    return _verdicts(before.conditions) != _verdicts(after.conditions)


def _verdicts(conditions: Iterable[Condition]) -> set[tuple[str, str]]:
    # Progressing flips within milliseconds on small models; it goes along with the others.
    return {(c.type, c.status) for c in conditions if c.type is not ConditionType.PROGRESSING}
