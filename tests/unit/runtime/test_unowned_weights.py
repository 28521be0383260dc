"""A WeightVersion may come before its fleet; when the fleet does not follow, attention is needed."""

from __future__ import annotations

from dataclasses import replace

from tests.support.builders import NOW, make_weights

from fleet_operator.core.observed import UnreadWeights
from fleet_operator.core.steering import FLEET_GRACE_SECONDS
from fleet_operator.runtime.unowned_weights import UnownedWeights
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import WeightsStatus

KEY = ("rl", "policy")
LONELY = make_weights("1")


def conditions(status: WeightsStatus) -> dict[str, tuple[str, str]]:
    return {c.type.value: (c.status, c.reason.value) for c in status.conditions}


def test_within_its_grace_the_fleet_may_still_come():
    made, left_seconds = UnownedWeights().update(KEY, [LONELY], 100.0, now=NOW)

    assert left_seconds == FLEET_GRACE_SECONDS
    assert conditions(made[LONELY.uid]) == {
        "Ready": ("False", "FleetNotFound"),
        "Progressing": ("True", "FleetNotFound"),
    }


def test_when_its_grace_is_over_attention_is_needed():
    orphans = UnownedWeights()
    orphans.update(KEY, [LONELY], 100.0, now=NOW)

    made, left_seconds = orphans.update(KEY, [LONELY], 100.0 + FLEET_GRACE_SECONDS, now=NOW)

    assert left_seconds is None
    assert conditions(made[LONELY.uid])["Stalled"] == ("True", "FleetNotFound")
    assert conditions(made[LONELY.uid])["Progressing"] == ("False", "FleetNotFound")


def test_a_weightversion_whose_fleet_cannot_be_read_is_invalid_at_once():
    unread = UnreadWeights(
        name="policy",
        namespace="rl",
        uid="unread",
        generation=1,
        created_at=NOW,
        fleet="",
        unreadable="spec.fleetRef: a name is needed",
    )
    made, left_seconds = UnownedWeights().update(("rl", ""), [unread], 100.0, now=NOW)

    assert left_seconds is None
    assert conditions(made["unread"])["Stalled"] == ("True", "InvalidSpec")


def test_each_has_a_grace_of_its_own():
    orphans, late = UnownedWeights(), replace(LONELY, uid="late")
    orphans.update(KEY, [LONELY], 0.0, now=NOW)

    made, left_seconds = orphans.update(KEY, [LONELY, late], FLEET_GRACE_SECONDS, now=NOW)

    assert condition_of(made[LONELY.uid].conditions, ConditionType.STALLED) is not None
    assert condition_of(made["late"].conditions, ConditionType.STALLED) is None
    assert left_seconds == FLEET_GRACE_SECONDS


def test_under_a_new_leader_what_was_stalled_stays_so():
    before = UnownedWeights()
    before.update(KEY, [LONELY], 0.0, now=NOW)
    made, _ = before.update(KEY, [LONELY], FLEET_GRACE_SECONDS, now=NOW)

    again, left_seconds = UnownedWeights().update(
        KEY, [replace(LONELY, status=made[LONELY.uid])], 5.0, now=NOW
    )

    stalled = condition_of(again[LONELY.uid].conditions, ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason is ConditionReason.FLEET_NOT_FOUND
    assert left_seconds is None
