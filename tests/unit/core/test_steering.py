"""WeightVersions without effect report the reason and the remedy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker

from fleet_operator.core.observed import UnreadWeights
from fleet_operator.core.steering import missing_fleet, not_steering
from rlfleet_resources.reasons import ConditionReason

FIRST = make_weights("1", name="first", uid="wv-1")
SECOND = make_weights("2", name="second", uid="wv-2", created_at=NOW + timedelta(seconds=1))


def test_the_steering_weightversion_is_accepted():
    assert not_steering(make_fleet(make_worker(0), wants=[SECOND, FIRST]), FIRST) is None


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ("", ConditionReason.SECOND_BASE_VERSION),
        ("sql", ConditionReason.SECOND_ADAPTER_VERSION),
    ],
)
def test_a_weightversion_is_refused_while_an_older_one_of_its_place_cannot_be_read(adapter, reason):
    """The older one steers nothing, and keeps its place until it is repaired."""
    older = UnreadWeights(
        name="first",
        namespace="rl",
        uid="wv-1",
        generation=1,
        created_at=NOW,
        fleet="policy",
        unreadable="spec.source: exactly one of path and huggingFace must be set",
        adapter=adapter,
    )
    younger = replace(SECOND, spec=SECOND.spec.model_copy(update={"adapter": adapter}))
    fleet = make_fleet(make_worker(0), wants=younger, adapters={"max": 4})
    refusal = not_steering(replace(fleet, unread=(older,)), younger)

    assert not_steering(fleet, younger) is None
    assert refusal is not None
    assert refusal[0] is reason
    assert "WeightVersion first is older" in refusal[1]
    assert "cannot be read" in refusal[1]


def test_no_weightversion_steers_an_external_fleet():
    weights = {"roots": ["/weights"], "management": "External"}
    refusal = not_steering(make_fleet(make_worker(0), wants=FIRST, weights=weights), FIRST)

    assert refusal is not None
    assert refusal[0] is ConditionReason.EXTERNALLY_MANAGED
    assert "fleet policy" in refusal[1]


def test_a_weightversion_without_a_fleet_names_the_missing_fleet():
    reason, message = missing_fleet(("rl", "policy"))

    assert reason is ConditionReason.FLEET_NOT_FOUND
    assert message == "there is no InferenceFleet 'policy' in namespace 'rl'; create it"
