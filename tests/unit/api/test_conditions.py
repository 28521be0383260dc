"""Conditions keep their transition time unless their status flips."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_condition

from rlfleet_resources.conditions import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    condition_of,
    new_condition,
)
from rlfleet_resources.reasons import ConditionReason, ConditionType

LATER = NOW + timedelta(seconds=30)
READY = ConditionType.READY


def made(previous: list[Condition], *, is_true: bool = True, message: str = "") -> Condition:
    return new_condition(
        previous,
        READY,
        is_true=is_true,
        reason=ConditionReason.ROLLING_OUT,
        message=message,
        generation=2,
        now=LATER,
    )


@pytest.mark.parametrize(
    ("previous", "since"),
    [
        pytest.param([], LATER, id="a new condition begins now"),
        pytest.param([make_condition(READY, is_true=False)], LATER, id="a flip begins now"),
        pytest.param([make_condition(READY)], NOW, id="another reason is not a flip"),
        pytest.param(
            [make_condition(ConditionType.AVAILABLE)], LATER, id="another type does not count"
        ),
    ],
)
def test_the_transition_time_changes_with_the_status_only(previous, since):
    assert made(previous).last_transition_time == since


def test_a_condition_has_the_generation_it_was_computed_for():
    assert made([make_condition(READY)]).observed_generation == 2


def test_a_message_beyond_the_api_servers_limit_loses_its_middle():
    message = made([], message=f"a pod is refused: {'x' * 5000}. Check the quota").message

    assert len(message) == MAX_MESSAGE_CHARACTERS
    assert message.startswith("a pod is refused: x")
    assert message.endswith("x. Check the quota")


def test_a_condition_is_found_by_its_type():
    stalled = make_condition(ConditionType.STALLED)

    assert condition_of([make_condition(READY), stalled], ConditionType.STALLED) is stalled
    assert condition_of([stalled], READY) is None


def test_times_are_written_in_utc_with_microseconds():
    (written,) = {made([]).to_json()["lastTransitionTime"]}

    assert written == "2026-03-01T12:00:30.000000Z"
    assert Condition.model_validate(made([]).to_json()) == made([])
