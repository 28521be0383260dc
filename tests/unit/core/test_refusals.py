"""WeightVersions that steer nothing are told why, and what to do."""

from __future__ import annotations

from datetime import timedelta

from tests.support.builders import NOW, make_fleet, make_weights, make_worker

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.refusals import orphan_refusal, refusal_of

FIRST = make_weights("1", name="first", uid="wv-1")
SECOND = make_weights("2", name="second", uid="wv-2", created_at=NOW + timedelta(seconds=1))


def test_the_one_that_steers_is_not_refused():
    assert refusal_of(make_fleet(make_worker(0), wants=[SECOND, FIRST]), FIRST) is None


def test_a_second_one_is_told_who_steers():
    refusal = refusal_of(make_fleet(make_worker(0), wants=[SECOND, FIRST]), SECOND)

    assert refusal is not None
    assert refusal[0] is ConditionReason.SECOND_BASE_VERSION
    assert "WeightVersion first is older" in refusal[1]


def test_none_steers_a_fleet_that_its_trainer_drives():
    weights = {"roots": ["/weights"], "management": "External"}
    refusal = refusal_of(make_fleet(make_worker(0), wants=FIRST, weights=weights), FIRST)

    assert refusal is not None
    assert refusal[0] is ConditionReason.EXTERNALLY_MANAGED
    assert "fleet policy is driven by its trainer" in refusal[1]


def test_one_without_a_fleet_is_told_which_fleet_it_names():
    reason, message = orphan_refusal(("rl", "policy"))

    assert reason is ConditionReason.FLEET_NOT_FOUND
    assert message == "there is no InferenceFleet 'policy' in namespace 'rl'; create it"
