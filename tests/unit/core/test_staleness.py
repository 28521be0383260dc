"""`spec.staleness`: which versions count as newer, and when a fleet is stale."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import (
    NOW,
    applied_status,
    history_of,
    make_fleet,
    make_weights,
    make_worker,
    target,
)

from fleet_operator.core import decision
from fleet_operator.core.decision import decide
from fleet_operator.core.events import fleet_events
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.problems import Problem
from fleet_operator.core.staleness import stale, unaware_of, wanted_of
from fleet_operator.core.unreadable import report_undecided
from fleet_operator.core.weights_in_use import versions_of
from fleet_worker.protocol import VersionOf, lag_of
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import HistoryEntry


def ended(version: str, seconds_ago: float, run_id: str | None = None) -> HistoryEntry:
    began = NOW - timedelta(seconds=seconds_ago)
    return HistoryEntry(
        version=version, run_id=run_id, result="Applied", started_at=began, total_seconds=1
    )


def fleet(*served: str, rule: dict[str, Any], desired: str = "14") -> FleetObserved:
    """Desired for 20 s: version 14; 13 since 50 s, 12 since 80 s."""
    status = applied_status(
        "14",
        started_at=NOW - timedelta(seconds=20),
        history=(ended("13", 50), ended("12", 80)),
    )
    workers = [make_worker(n).serving(version) for n, version in enumerate(served)]
    return make_fleet(*workers, wants=make_weights(desired, status=status), staleness=rule)


def lag(observed: FleetObserved, version: str, desired: str = "14") -> tuple[int, float]:
    told = wanted_of(observed, target(desired), now=NOW)
    return tuple(lag_of(told.wanted, VersionOf(version), complete=told.complete))


@pytest.mark.parametrize(
    ("version", "expected"),
    [("14", (0, 0)), ("13", (1, 20)), ("12", (2, 50)), ("base", (3, 80))],
)
def test_weights_lag_since_the_next_version_was_desired(version, expected):
    assert lag(fleet(rule={}), version) == expected


def test_a_version_that_is_desired_a_moment_ago_counts_before_its_rollout_begins():
    observed = fleet(rule={}, desired="15")

    assert lag(observed, "14", desired="15") == (1, 0)
    assert lag(observed, "13", desired="15") == (2, 20)


def test_a_version_of_another_run_is_another_version():
    told = wanted_of(fleet(rule={}), replace(target("14"), run_id="run-b"), now=NOW)

    assert lag_of(told.wanted, VersionOf("14", "run-a")).versions == 1


def test_attempts_at_the_same_version_count_once_and_from_the_first():
    status = applied_status(
        "14", started_at=NOW, history=(ended("14", 30), ended("14", 40), ended("13", 90))
    )
    observed = make_fleet(make_worker(0), wants=make_weights("14", status=status), staleness={})

    assert lag(observed, "13") == (1, 40)


def test_weights_that_a_full_history_does_not_name_are_older_than_any_limit():
    status = applied_status("20", history=history_of(*(str(n) for n in range(19, 9, -1))))
    observed = make_fleet(make_worker(0), wants=make_weights("20", status=status), staleness={})

    assert lag(observed, "3", desired="20") == (11, math.inf)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({}, None),
        ({"maxLagVersions": 2}, None),
        ({"maxLagVersions": 1}, ConditionReason.WEIGHTS_TOO_OLD),
        ({"maxLagSeconds": 60}, None),
        ({"maxLagSeconds": 40}, ConditionReason.WEIGHTS_TOO_OLD),
        ({"maxLagSeconds": 40, "action": "Refuse"}, ConditionReason.REQUESTS_REFUSED),
    ],
)
def test_a_fleet_is_stale_while_a_worker_serves_weights_beyond_a_limit(rule, reason):
    observed = fleet("14", "12", rule=rule)
    conditions = decide(observed, default_image="i", now=NOW).fleet.conditions
    found = {c.type: (c.status, c.reason) for c in conditions}

    assert found.get(ConditionType.STALE) == (("True", reason) if reason else None)


def test_an_event_says_when_requests_begin_to_be_refused_and_when_that_is_over():
    fine, refusing = (
        decide(fleet("14", served, rule=REFUSE), default_image="i", now=NOW).fleet
        for served in ("14", "12")
    )

    begun, ended = fleet_events(fine, refusing), fleet_events(refusing, fine)

    assert ("Warning", ConditionReason.REQUESTS_REFUSED) in [(e.type, e.reason) for e in begun]
    assert ("Normal", "Recovered") in [(e.type, e.reason) for e in ended]
    assert fleet_events(refusing, refusing) == []


def test_the_message_counts_workers_and_names_versions_without_a_clock():
    observed = fleet("14", "12", "13", rule={"maxLagVersions": 0})
    made, later = (
        stale(observed, target("14"), versions_of(observed), now=NOW + timedelta(seconds=s))
        for s in (0, 5)
    )

    assert made is not None
    assert made == later
    assert all(part in made[3] for part in ("2 of 3 workers", "12", "13", "2 versions", "14"))


def test_only_a_fleet_that_refuses_sends_limits_to_its_workers():
    reported = wanted_of(fleet(rule={"maxLagSeconds": 40}), target("14"), now=NOW)
    refused = wanted_of(
        fleet(rule={"maxLagSeconds": 40, "action": "Refuse"}), target("14"), now=NOW
    )

    assert (reported.limits, refused.limits) == (False, True)
    assert refused.max_seconds == 40
    assert not wanted_of(make_fleet(make_worker(0)), target("14"), now=NOW).wanted


@pytest.mark.parametrize(("action", "unaware"), [("Refuse", {"uid-0"}), ("Report", set())])
def test_workers_of_a_fleet_that_refuses_must_know_the_limits(action, unaware):
    rule = {"maxLagSeconds": 40, "action": action}
    new, told = (make_worker(n).joining("base") for n in range(2))
    observed = make_fleet(new, told.reporting(limits_lag=True), staleness=rule)

    assert unaware_of(observed) == unaware


REFUSE: dict[str, Any] = {"maxLagSeconds": 40, "action": "Refuse"}


def heard(status: FleetStatus) -> str | None:
    """The reason of `Stale`."""
    found = condition_of(status.conditions, ConditionType.STALE)
    return found.reason if found is not None else None


def undecided(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> FleetStatus:
    """Of a fleet whose plan fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(decision, "plan_rollout", fail)
    return decide(fleet("14", rule=rule), default_image="i", now=NOW).fleet


def without_a_token(rule: dict[str, Any], _: pytest.MonkeyPatch) -> FleetStatus:
    observed = replace(fleet("14", rule=rule), has_token=False)
    return decide(observed, default_image="i", now=NOW).fleet


def without_pods(rule: dict[str, Any], _: pytest.MonkeyPatch) -> FleetStatus:
    observed = fleet(rule=rule)
    refused = Problem(part="pods", reason=ConditionReason.READ_REFUSED, message="403")
    return report_undecided(
        "policy",
        generation=1,
        unreadable="",
        status=observed.status,
        weights=observed.weights,
        problems=[refused],
        staleness=observed.spec.staleness,
        now=NOW,
    ).fleet


@pytest.mark.parametrize("status_of", [undecided, without_a_token, without_pods])
def test_workers_that_will_refuse_because_they_hear_nothing_are_reported(status_of, monkeypatch):
    refuses = status_of(REFUSE, monkeypatch)
    reports = status_of({"maxLagSeconds": 40}, monkeypatch)

    assert (heard(refuses), heard(reports)) == (ConditionReason.DESIRED_UNHEARD, None)
    found = condition_of(refuses.conditions, ConditionType.STALE)
    assert found is not None
    assert "40 s" in found.message


def test_workers_do_not_hear_a_guess_while_no_plan_says_what_is_desired(monkeypatch):
    """The plan in place of a failed one begins with the applied version, as if that were the newest."""
    undecided(REFUSE, monkeypatch)
    made = decide(fleet("13", rule=REFUSE, desired="15"), default_image="i", now=NOW)

    assert made.wanted is None


def test_a_fleet_whose_spec_was_never_read_says_that_its_workers_may_refuse():
    made = report_undecided(
        "policy",
        generation=1,
        unreadable="it is no object",
        status=FleetStatus(),
        weights=(),
        problems=(),
        staleness=None,
        now=NOW,
    ).fleet
    found = condition_of(made.conditions, ConditionType.STALLED)

    assert found is not None
    assert "maxLagSeconds" in found.message
