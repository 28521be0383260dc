"""The rule of `spec.staleness`: which versions were desired last, and which served ones lag too far behind.

The WeightVersion's status has the desired versions with the times at which their rollouts began, so nothing
is recorded for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fleet_operator.api.fleet import Staleness
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.condition_rows import Made, conditions_of, first_of
from fleet_operator.core.observed import FleetObserved
from fleet_operator.counts import agree, counted, counted_of
from fleet_worker.protocol import Lag, VersionOf, Wanted, WantedRequest, lag_of
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import FleetStatus, ServedVersion
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import MAX_HISTORY

_NOTHING = WantedRequest(term=0)


def wanted_of(observed: FleetObserved, desired: Checkpoint, *, now: datetime) -> WantedRequest:
    """The desired versions for the workers of a fleet, and the limits if they refuse by them.

    Empty without `spec.staleness`. The caller sets the term.
    """
    rule = observed.spec.staleness
    if rule is None:
        return _NOTHING
    wanted, complete = _wanted(observed, desired, now)
    return WantedRequest(
        wanted=wanted,
        complete=complete,
        max_versions=rule.max_lag_versions if rule.refuses else None,
        max_seconds=rule.max_lag_seconds if rule.refuses else None,
        term=0,
    )


def unaware_of(observed: FleetObserved) -> frozenset[str]:
    """The uids of workers that would serve weights of any age, although the spec permits none that is too old."""
    rule = observed.spec.staleness
    if rule is None or not rule.refuses:
        return frozenset()
    return frozenset(
        w.pod.uid for w in observed.workers if w.state is not None and not w.state.limits_lag
    )


def stale(
    observed: FleetObserved, desired: Checkpoint, served: Sequence[ServedVersion], *, now: datetime
) -> Made | None:
    """The condition, if admitted workers serve weights beyond the limits. `served`: what they serve."""
    rule = observed.spec.staleness
    if rule is None:
        return None
    wanted, complete = _wanted(observed, desired, now)
    lags = {
        each: lag_of(wanted, VersionOf(each.version, each.run_id), complete=complete)
        for each in served
    }
    late = [each for each in served if _exceeds(rule, lags[each])]
    workers, late_workers = (sum(each.workers for each in some) for some in (served, late))
    most = max((lags[each].versions for each in late), default=0)
    serve = counted_of(late_workers, workers, "worker", "serves", "serve")
    versions = ", ".join(each.version for each in late[:3])
    share = (
        f"{serve} version {versions}, up to {counted(most, 'version')} behind version {desired.label};"
        f" spec.staleness permits {_limits(rule)}"
    )
    refuses = (
        f"{share}. {agree(late_workers, 'It refuses', 'They refuse')} new requests until newer weights are "
        "loaded, or action is Report"
    )
    return first_of(
        ConditionType.STALE,
        (late and rule.refuses, True, ConditionReason.REQUESTS_REFUSED, refuses),
        (late, True, ConditionReason.WEIGHTS_TOO_OLD, share),
    )


def with_unheard(
    status: FleetStatus,
    before: Sequence[Condition],
    rule: Staleness | None,
    *,
    generation: int,
    now: datetime,
) -> FleetStatus:
    """The status of a fleet whose workers do not hear what is desired, so that they will refuse requests.

    `before`: the conditions of the last status. `Stalled` has the cause.
    """
    if rule is None or not rule.refuses:
        return status
    message = (
        "the workers do not hear which version is desired, for the cause that Stalled names. They refuse "
        f"new requests from {rule.max_lag_seconds} s after the last time on (spec.staleness)"
    )
    row = first_of(ConditionType.STALE, (True, True, ConditionReason.DESIRED_UNHEARD, message))
    (unheard,) = conditions_of([row], before, generation=generation, now=now)
    made = {c.type: c for c in (*status.conditions, unheard)}
    ordered = tuple(made[kind] for kind in ConditionType if kind in made)
    return status.model_copy(update={"conditions": ordered})


def _wanted(
    observed: FleetObserved, desired: Checkpoint, now: datetime
) -> tuple[tuple[Wanted, ...], bool]:
    """The desired versions, newest first, each once in a row; and whether no other came before them."""
    begun: list[tuple[VersionOf, datetime]] = [(VersionOf(desired.version, desired.run_id), now)]
    history_is_full = False
    if (weights := observed.base_weights) is not None:
        status = weights.status
        last = status.desired_version, status.started_at
        if last[0] is not None and last[1] is not None:
            begun.append((VersionOf(last[0], status.desired_run_id), last[1]))
        begun += [(VersionOf(e.version, e.run_id), e.started_at) for e in status.history]
        history_is_full = len(status.history) == MAX_HISTORY
    found: list[tuple[VersionOf, datetime]] = []
    for version, at in begun:
        if found and found[-1][0] == version:
            found[-1] = version, min(at, found[-1][1])
        else:
            found.append((version, at))
    wanted = tuple(
        Wanted(version=v.version, run_id=v.run_id, seconds=max((now - at).total_seconds(), 0.0))
        for v, at in found
    )
    return wanted, not history_is_full


def _exceeds(rule: Staleness, lag: Lag) -> bool:
    too_many = rule.max_lag_versions is not None and lag.versions > rule.max_lag_versions
    return too_many or (rule.max_lag_seconds is not None and lag.seconds > rule.max_lag_seconds)


def _limits(rule: Staleness) -> str:
    limits = []
    if rule.max_lag_versions is not None:
        limits.append(counted(rule.max_lag_versions, "version"))
    if rule.max_lag_seconds is not None:
        limits.append(f"{rule.max_lag_seconds} s")
    return " and ".join(limits)
