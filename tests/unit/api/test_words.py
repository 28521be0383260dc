"""A word that another release has written stays that word."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.support.fake_objects import FakeObjects

from rlfleet import Refused, WeightVersion, processes
from rlfleet_resources.reasons import ConditionReason, LaggardReason, Severity
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

NO_WORD: Any = 3
KINDS = (ConditionReason, LaggardReason, RolloutPhase)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_word_is_the_same_word(kind: Any) -> None:
    for word in (next(iter(kind)), kind("InventedLater")):
        made = copy.deepcopy(word)

        assert (type(made), made, str(made)) == (kind, word, str(word))
        assert {word: 1}[str(made)] == 1


def test_an_unknown_reason_may_stall_and_advises_nothing() -> None:
    reason = ConditionReason("InventedLater")

    assert (reason.severity, reason.meaning, reason.advice) == (Severity.STALLS, "", ())
    with pytest.raises(ValueError, match="not a valid"):
        ConditionReason(NO_WORD)


def test_an_unknown_phase_is_not_another_phase() -> None:
    objects = FakeObjects()
    objects.write(observedGeneration=1, phase="InventedLater")

    seen = WeightVersion.model_validate(objects.weights)
    assert (seen.status.phase, WeightsStatus.read({}).phase) == ("InventedLater", "Pending")
    assert "phase InventedLater" in repr(seen)


def test_a_refusal_for_an_unknown_reason_is_sent_to_other_processes_whole() -> None:
    refused = Refused("42", ConditionReason("InventedLater"), "why")

    assert processes._sendable(refused) is refused
