"""The canaries so far: when their time begins, and what counts as their death."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, call_for, make_worker

from fleet_operator.core.identity import WeightsId
from fleet_operator.core.observed import Watched
from fleet_operator.core.strategies.trials import records_after, trials_of
from rlfleet_resources.weights_status import CanaryRecord

GOAL = WeightsId("42")
CALLED = CanaryRecord(pod="policy-0", uid="uid-0", called_at=NOW, restarts=1)
LATER = NOW + timedelta(seconds=50)


def records(worker, *before: CanaryRecord, call: str = "") -> tuple[CanaryRecord, ...]:
    calls = [call_for(call)] if call else []
    return records_after(before, [worker.view()], calls, GOAL, now=LATER)


@pytest.mark.parametrize(
    ("worker", "call", "begins"),
    [
        pytest.param(make_worker(0).serving("41"), "stage 42", True, id="is called"),
        pytest.param(make_worker(0).serving("41"), "stage 41", False, id="reads the baseline"),
        pytest.param(make_worker(0).serving("41"), "probe 41", False, id="answers first"),
        pytest.param(make_worker(0).serving("41"), "", False, id="waits for a place"),
        pytest.param(make_worker(0).serving("41").staged("42"), "", True, id="was called before"),
    ],
)
def test_the_time_of_a_canary_begins_with_its_first_call_for_the_version(worker, call, begins):
    found = records(worker.restarted(1), call=call)

    assert [(r.uid, r.called_at, r.restarts) for r in found] == [("uid-0", LATER, 1)] * begins


@pytest.mark.parametrize(
    ("restarts", "expected"),
    [(1, CALLED), (2, CALLED.model_copy(update={"called_at": LATER, "restarts": 2, "deaths": 1}))],
)
def test_it_begins_again_with_another_process(restarts, expected):
    worker = make_worker(0).serving("41").restarted(restarts)

    assert records(worker, CALLED, call="stage 42") == (expected,)


@pytest.mark.parametrize(
    ("workers", "is_alive", "deaths"),
    [
        ([make_worker(0).serving("41").restarted(1)], True, 0),
        ([make_worker(0).serving("41").restarted(2)], False, 1),
        ([make_worker(0).not_running().restarted(1)], False, 1),
        ([], False, 0),
    ],
)
def test_a_process_that_has_ended_since_its_call_is_a_death(workers, is_alive, deaths):
    views = [w.view() for w in workers]
    (found,) = trials_of([CALLED], views, Watched(phase_seconds=1e6, attempt_seconds=1e6), LATER)

    assert (found.is_alive, found.deaths, found.seconds) == (is_alive, deaths, 50)


def test_only_the_time_that_the_leader_has_watched_counts():
    (found,) = trials_of([CALLED], [], Watched(phase_seconds=7), LATER)

    assert found.seconds == 7
