"""How long a pause lets running requests continue."""

from __future__ import annotations

from typing import get_args

import pytest

from fleet_operator.api.fleet import Pause, PauseMode
from fleet_operator.core.worker_calls import PAUSE_MODES


@pytest.mark.parametrize(("mode", "seconds"), [("Keep", 0), ("Wait", 60), ("Abort", 0)])
def test_only_a_pause_that_waits_lets_requests_continue(mode, seconds):
    assert Pause(mode=mode, drain_timeout_seconds=60).limit() == seconds


def test_workers_know_each_mode():
    assert PAUSE_MODES.keys() == set(get_args(PauseMode))
