"""Workers' refusals keep their words on the way into conditions."""

from __future__ import annotations

import pytest

from fleet_worker.protocol import Reason
from rlfleet_resources.reasons import ConditionReason

CHECKS = [r for r in Reason if r.value.startswith(("Source", "Checkpoint", "Digest"))]

NO_REASONS = {Reason.SOURCE_NOT_READY, Reason.SOURCE_ABSENT}
"""Waited for, or `SourceNotFound`."""


@pytest.mark.parametrize("reason", [r for r in CHECKS if r not in NO_REASONS])
def test_every_refusal_of_a_checkpoint_is_a_condition_reason(reason):
    assert ConditionReason(reason.value).value == reason.value
