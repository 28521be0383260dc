"""What a worker can do to a client right now is judged on the safe side."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker

from fleet_operator.core.observed import PROBE_SECONDS, Standing

WORKER = make_worker()


@pytest.mark.parametrize(
    ("worker", "standing"),
    [
        pytest.param(WORKER.serving("1"), Standing.OPEN, id="who serves generates"),
        pytest.param(WORKER.pausing("1"), Standing.OPEN, id="who is pausing still generates"),
        pytest.param(
            WORKER.serving("1")._says(admitted=False),
            Standing.CLOSED,
            id="a closed worker is closed, though it says that it serves",
        ),
        pytest.param(
            WORKER.pausing("1")._says(admitted=False),
            Standing.OPEN,
            id="a closed worker that lets requests end still generates",
        ),
        pytest.param(WORKER.paused("1"), Standing.HELD, id="who is paused holds its requests"),
        pytest.param(WORKER.loading("1", "2"), Standing.HELD, id="who loads holds its requests"),
        pytest.param(WORKER.joining("1"), Standing.CLOSED, id="a joiner is closed"),
        pytest.param(
            WORKER.joining("1").ready(), Standing.CLOSED, id="a joiner is closed, ready or not"
        ),
        pytest.param(
            WORKER.joining("1")._says(phase="loading"),
            Standing.CLOSED,
            id="a joiner that loads is closed",
        ),
        pytest.param(
            WORKER.joining("1")._says(phase="paused"),
            Standing.CLOSED,
            id="who was paused before it was admitted is closed",
        ),
        pytest.param(WORKER.starting(), Standing.CLOSED, id="who starts is closed"),
        pytest.param(WORKER.broken(), Standing.CLOSED, id="who is broken is closed"),
        pytest.param(WORKER.draining("1"), Standing.CLOSED, id="who drains is closed"),
        pytest.param(
            WORKER.serving("1").silent(),
            Standing.UNKNOWN,
            id="a silent one that is ready may serve",
        ),
        pytest.param(
            WORKER.paused("1").silent(),
            Standing.UNKNOWN,
            id="a silent one that was paused may have opened again",
        ),
        pytest.param(
            WORKER.serving("1").silent(PROBE_SECONDS + 1).unready(),
            Standing.ABSENT,
            id="a silent one that is not ready gets no clients",
        ),
        pytest.param(
            WORKER.serving("1").silent(1).unready(),
            Standing.UNKNOWN,
            id="a silent one that was admitted before any probe may serve",
        ),
        pytest.param(
            WORKER.joining("1").silent(1).unready(),
            Standing.ABSENT,
            id="a silent joiner serves nobody",
        ),
        pytest.param(
            WORKER, Standing.UNKNOWN, id="a ready one that was never heard of may be serving"
        ),
        pytest.param(
            WORKER.unready(), Standing.ABSENT, id="one that was never heard of nor ready is absent"
        ),
        pytest.param(WORKER.serving("1").going(), Standing.ABSENT, id="a pod that goes is absent"),
        pytest.param(
            WORKER.serving("1").quarantined(), Standing.ABSENT, id="a quarantined pod is absent"
        ),
        pytest.param(
            WORKER.serving("1").not_running(),
            Standing.ABSENT,
            id="without its container it is absent",
        ),
    ],
)
def test_standing(worker, standing):
    assert worker.view().standing is standing


@pytest.mark.parametrize(
    ("worker", "operation", "busy"),
    [
        pytest.param(WORKER, "", False, id="nothing is known of it"),
        pytest.param(WORKER.serving("1"), "", False, id="it is idle"),
        pytest.param(WORKER.serving("1").doing("stage", "2"), "stage 2", True, id="it stages"),
        pytest.param(WORKER.serving("1").doing("pause"), "pause", True, id="it pauses"),
        pytest.param(WORKER.serving("1").asked_to("stage 2"), "", True, id="it is being asked"),
    ],
)
def test_work_under_way_is_known_by_its_own_account_or_by_our_call(worker, operation, busy):
    view = worker.view()

    assert (view.operation, view.busy) == (operation, busy)


def test_of_a_worker_that_said_nothing_no_version_is_known():
    assert WORKER.view().version is None
    assert WORKER.view().loaded is None
    assert WORKER.view().staged is None


def test_the_oldest_weightversion_steers_the_base_weights_whatever_the_order():
    older = make_weights("1", name="b", uid="b", created_at=NOW)
    newer = make_weights("2", name="a", uid="a", created_at=NOW + timedelta(seconds=1))

    assert make_fleet(wants=[newer, older]).base_weights == older
    assert make_fleet(wants=[older, newer]).base_weights == older


def test_of_two_weightversions_made_in_the_same_second_the_first_name_steers():
    one, two = make_weights("1", name="a", uid="z"), make_weights("2", name="b", uid="y")

    assert make_fleet(wants=[two, one]).base_weights == one


def test_a_fleet_without_a_weightversion_is_steered_by_nobody():
    assert make_fleet().base_weights is None
