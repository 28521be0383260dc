"""Events: each one is a difference between two statuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fleet_operator.core.identity import label
from fleet_operator.counts import agree
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import HistoryEntry, WeightsStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An Event that the operator will post."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def fleet_events(before: FleetStatus, after: FleetStatus) -> list[NewEvent]:
    """Events of a fleet."""
    found = _begins(ConditionType.STALLED, before.conditions, after.conditions)
    found += _begins(ConditionType.STALE, before.conditions, after.conditions)
    found += _waits(before, after)
    for subject in (ConditionType.AVAILABLE, ConditionType.ROUTER_AVAILABLE):
        was = condition_of(before.conditions, subject)
        now = condition_of(after.conditions, subject)
        if was is not None and now is not None and was.status != now.status:
            kind: Literal["Normal", "Warning"] = "Normal" if now.status == "True" else "Warning"
            found.append(NewEvent(type=kind, reason=now.reason, message=now.message))
    return found


def weights_events(before: WeightsStatus, after: WeightsStatus) -> list[NewEvent]:
    """Events of a WeightVersion."""
    found = _begins(ConditionType.STALLED, before.conditions, after.conditions)
    verdict = after.canary
    if verdict is not None and verdict != before.canary:
        kind: Literal["Normal", "Warning"] = "Normal" if verdict.passed else "Warning"
        reason = "CanaryPassed" if verdict.passed else ConditionReason.CANARY_REFUSED
        found.insert(0, NewEvent(type=kind, reason=reason, message=verdict.message))
    unchanged = condition_of(after.conditions, ConditionType.WEIGHTS_UNCHANGED)
    was = condition_of(before.conditions, ConditionType.WEIGHTS_UNCHANGED)
    # One warning per version, also when the condition stays True.
    another = not before.is_about(str(after.desired_version), after.desired_run_id)
    if unchanged is not None and (was is None or another):
        found.append(
            NewEvent(
                type="Warning",
                reason=ConditionType.WEIGHTS_UNCHANGED,
                message=unchanged.message,
            )
        )
    said = condition_of(after.conditions, ConditionType.REMARKS)
    was = condition_of(before.conditions, ConditionType.REMARKS)
    # Once, and not for each version of a run.
    if said is not None and (was is None or was.message != said.message):
        found.append(NewEvent(type="Normal", reason=ConditionType.REMARKS, message=said.message))
    newest = just_applied(before, after)
    if newest is not None:
        workers = agree(after.workers.total, "worker", "workers")
        message = (
            f"version {label(newest.version, newest.run_id)} on {after.workers_applied} {workers} after "
            f"{newest.total_seconds:.2f} s; no worker paused longer than "
            f"{newest.max_worker_pause_seconds:.3f} s"
        )
        found.append(NewEvent(type="Normal", reason="WeightsApplied", message=message))
    return found


def just_applied(before: WeightsStatus, after: WeightsStatus) -> HistoryEntry | None:
    """The history entry of a rollout that has just finished; None without one."""
    known = {(e.version, e.run_id, e.started_at) for e in before.history}
    newest = after.history[0] if after.history else None
    if newest is None or newest.result != "Applied":
        return None
    return None if (newest.version, newest.run_id, newest.started_at) in known else newest


def _begins(
    subject: ConditionType, before: Iterable[Condition], after: Iterable[Condition]
) -> list[NewEvent]:
    """A warning when a condition that is present only while true begins or has another reason, and its end."""
    was, now = condition_of(before, subject), condition_of(after, subject)
    if now is not None and (was is None or was.reason != now.reason):
        return [NewEvent(type="Warning", reason=now.reason, message=now.message)]
    if was is not None and now is None and was.reason is not ConditionReason.WORKERS_FAILING:
        message = f"{was.reason} is over"
        return [NewEvent(type="Normal", reason="Recovered", message=message)]
    return []


def _waits(before: FleetStatus, after: FleetStatus) -> list[NewEvent]:
    """One Event when `Ready` begins to name a wait of pods for the cluster, and one when none waits any more."""
    now = condition_of(after.conditions, ConditionType.READY)
    if now is None or after.waiting_for == before.waiting_for:
        return []
    if not after.waiting_for:
        return [
            NewEvent(type="Normal", reason="WaitEnded", message=f"{before.waiting_for} is over")
        ]
    return [NewEvent(type="Normal", reason=after.waiting_for, message=now.message)]


_PINS = ("pinned", "pinned_adapters")


def is_urgent(before: FleetStatus | WeightsStatus, after: FleetStatus | WeightsStatus) -> bool:
    """Whether a status must be written at once. Progress alone may wait for the next write."""
    was = (before.observed_generation, before.desired_version, before.desired_run_id)
    if was != (after.observed_generation, after.desired_version, after.desired_run_id):
        return True
    # No worker loads before the pin is stored.
    if any(getattr(after, f, None) != getattr(before, f, None) for f in _PINS):
        return True
    return _verdicts(before.conditions) != _verdicts(after.conditions)


def _verdicts(conditions: Iterable[Condition]) -> set[tuple[str, str]]:
    # Progressing changes within milliseconds on small models; it is written with the others.
    return {(c.type, c.status) for c in conditions if c.type is not ConditionType.PROGRESSING}
