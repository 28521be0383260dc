"""How long a pause lets running requests continue."""

from __future__ import annotations

import pytest

from fleet_operator.api.fleet import Pause


@pytest.mark.parametrize(("mode", "seconds"), [("Keep", 0), ("Wait", 60), ("Abort", 0)])
def test_only_a_pause_that_waits_lets_requests_continue(mode, seconds):
    assert Pause(mode=mode, drain_timeout_seconds=60).limit() == seconds
