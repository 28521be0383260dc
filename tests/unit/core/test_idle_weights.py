"""WeightVersions that steer nothing: a status is computed once, and again only if it must change."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker

from fleet_operator.core import idle_weights, unreadable
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.idle_weights import says_too_many
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.problems import Problem
from fleet_operator.core.steering import LOOKED_AT
from fleet_operator.core.unreadable import report_undecided
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import WeightsStatus

MANY = 100
LATER = NOW + timedelta(hours=1)


def numbered(number: int, **changes: Any) -> WeightsView:
    return make_weights(
        "2",
        name=f"w{number}",
        uid=f"w{number}",
        created_at=NOW + timedelta(seconds=number),
        **changes,
    )


def unread(number: int) -> UnreadWeights:
    return UnreadWeights(
        name=f"u{number}",
        namespace="rl",
        uid=f"u{number}",
        generation=1,
        created_at=NOW + timedelta(days=1, seconds=number),
        fleet="policy",
        unreadable="spec.source: exactly one of path and huggingFace must be set",
        adapter="",
    )


def crowded() -> FleetObserved:
    fleet = make_fleet(make_worker(0).serving("2"), wants=[numbered(n) for n in range(MANY)])
    unreads = tuple(unread(n) for n in range(5))
    beyond = (numbered(1000), unread(1000))
    return replace(fleet, unread=unreads, beyond=beyond, beyond_count=2)


def decided(fleet: FleetObserved) -> Decision:
    decision = decide(fleet, default_image="image", now=LATER)
    assert not decision.defects
    return decision


def after(fleet: FleetObserved) -> FleetObserved:
    """The fleet with the statuses that its decision has set."""
    made = decided(fleet)

    def known(each: Any) -> Any:
        return replace(each, status=made.weights[each.uid])

    return replace(
        fleet,
        status=made.fleet,
        weights=tuple(map(known, fleet.weights)),
        unread=tuple(map(known, fleet.unread)),
        beyond=tuple(map(known, fleet.beyond)),
    )


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the WeightVersions of which an idle status was computed."""
    found: list[str] = []
    refused, kept = idle_weights.refused_status, unreadable.kept_weights_status

    def refusing(weights: WeightsView, *args: Any, **options: Any) -> WeightsStatus:
        found.append(weights.name)
        return refused(weights, *args, **options)

    def keeping(before: WeightsStatus, *, generation: int) -> WeightsStatus:
        found.append("unread")
        return kept(before, generation=generation)

    monkeypatch.setattr(idle_weights, "refused_status", refusing)
    monkeypatch.setattr(unreadable, "kept_weights_status", keeping)
    return found


def stalled(status: WeightsStatus) -> tuple[ConditionReason, str]:
    found = condition_of(status.conditions, ConditionType.STALLED)
    assert found is not None
    return found.reason, found.message


def test_a_decision_computes_no_status_that_would_say_the_same_again(computed):
    first = crowded()
    fleet = after(first)
    assert len(computed) == MANY - 1 + 5 + 2
    computed.clear()
    made = decided(fleet)
    assert computed == []
    assert all(made.weights[w.uid] is w.status for w in (*fleet.weights[1:], *fleet.unread))
    assert {w.uid for w in fleet.all_weights} == set(made.weights)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda w: replace(w, generation=2), id="another generation"),
        pytest.param(lambda w: replace(w, status=WeightsStatus()), id="its status is lost"),
        pytest.param(lambda w: replace(w, unreadable="spec: x"), id="it cannot be read any more"),
    ],
)
def test_a_decision_computes_the_status_of_one_that_has_changed(change, computed):
    fleet = after(crowded())
    computed.clear()
    weights = list(fleet.weights)
    weights[7] = change(weights[7])
    changed = after(replace(fleet, weights=tuple(weights)))
    assert computed == ["w7"]
    computed.clear()
    decided(changed)
    assert computed == []


def test_those_of_another_steering_weightversion_name_it(computed):
    fleet = after(crowded())
    computed.clear()
    made = decided(replace(fleet, weights=fleet.weights[1:]))
    assert sorted(computed) == sorted(w.name for w in fleet.weights[2:])
    assert all("w1 is older" in stalled(made.weights[w.uid])[1] for w in fleet.weights[2:])


def test_they_do_not_repeat_the_problems_of_the_fleet(computed):
    fleet = after(crowded())
    computed.clear()
    refused = Problem(
        part="pods", reason=ConditionReason.READ_REFUSED, message="403", concerns_weights=True
    )
    made = decided(replace(fleet, problems=(refused,)))
    assert computed == []
    assert stalled(made.weights["w0"]) == (ConditionReason.READ_REFUSED, "403")


def test_a_fleet_without_a_decision_computes_no_status_that_would_say_the_same_again(computed):
    refused = Problem(
        part="pods", reason=ConditionReason.READ_REFUSED, message="403", concerns_weights=True
    )

    def reported(weights: list[WeightsView]) -> list[WeightsView]:
        made = report_undecided(
            "policy",
            generation=1,
            unreadable="",
            status=FleetStatus(),
            weights=weights,
            problems=[refused],
            staleness=None,
            now=LATER,
        )
        return [replace(w, status=made.weights[w.uid]) for w in weights]

    weights = reported([numbered(n) for n in range(MANY)])
    assert len(computed) == MANY
    computed.clear()
    assert reported(weights) == weights
    assert computed == []


def test_those_beyond_the_bound_say_so_and_the_fleet_counts_them():
    fleet = after(crowded())
    assert [stalled(w.status)[0] for w in fleet.beyond] == [ConditionReason.TOO_MANY] * 2
    assert all(map(says_too_many, fleet.beyond))
    assert not any(map(says_too_many, crowded().all_weights))

    status = after(replace(fleet, unread=())).status
    said = condition_of(status.conditions, ConditionType.STALLED)
    ready = condition_of(status.conditions, ConditionType.READY)
    assert said is not None
    assert said.reason is ConditionReason.TOO_MANY
    assert f"{LOOKED_AT + 2} WeightVersions" in said.message
    assert ready is not None
    assert ready.reason is not ConditionReason.TOO_MANY


def test_a_defect_in_one_is_reported_on_it_and_the_others_get_their_status(monkeypatch):
    refused = idle_weights.refused_status

    def raising(weights: WeightsView, *args: Any, **options: Any) -> WeightsStatus:
        if weights.name == "w3":
            raise ZeroDivisionError
        return refused(weights, *args, **options)

    monkeypatch.setattr(idle_weights, "refused_status", raising)
    made = decide(crowded(), default_image="image", now=LATER)
    reasons = {name: stalled(made.weights[name])[0] for name in ("w2", "w3", "w4")}
    second = ConditionReason.SECOND_BASE_VERSION
    assert reasons == {"w2": second, "w3": ConditionReason.INTERNAL_ERROR, "w4": second}
