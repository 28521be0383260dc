"""A worker's possible effect on clients is judged on the safe side."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker, work

from fleet_operator.core.worker_view import PROBE_SECONDS, Standing

WORKER = make_worker()


@pytest.mark.parametrize(
    ("worker", "standing"),
    [
        pytest.param(WORKER.serving("1"), Standing.OPEN, id="a serving worker generates"),
        pytest.param(WORKER.pausing("1"), Standing.OPEN, id="a pausing worker generates"),
        pytest.param(
            WORKER.serving("1").reporting(admitted=False),
            Standing.CLOSED,
            id="a closed worker that reports serving is closed",
        ),
        pytest.param(
            WORKER.pausing("1").reporting(admitted=False),
            Standing.OPEN,
            id="a closed worker that lets requests end still generates",
        ),
        pytest.param(WORKER.paused("1"), Standing.HELD, id="a paused worker holds its requests"),
        pytest.param(
            WORKER.loading("1", "2"), Standing.HELD, id="a loading worker holds its requests"
        ),
        pytest.param(WORKER.joining("1"), Standing.CLOSED, id="a joiner is closed"),
        pytest.param(
            WORKER.joining("1").ready(), Standing.CLOSED, id="a joiner is closed, ready or not"
        ),
        pytest.param(
            WORKER.joining("1").reporting(phase="loading"),
            Standing.CLOSED,
            id="a joiner that loads is closed",
        ),
        pytest.param(
            WORKER.joining("1").reporting(phase="paused"),
            Standing.CLOSED,
            id="a worker paused before its admission is closed",
        ),
        pytest.param(WORKER.starting(), Standing.CLOSED, id="a starting worker is closed"),
        pytest.param(WORKER.broken(), Standing.CLOSED, id="a broken worker is closed"),
        pytest.param(WORKER.draining("1"), Standing.CLOSED, id="a draining worker is closed"),
        pytest.param(
            WORKER.serving("1").silent(),
            Standing.UNKNOWN,
            id="a silent ready worker may serve",
        ),
        pytest.param(
            WORKER.paused("1").silent(),
            Standing.UNKNOWN,
            id="a silent worker that was paused may have resumed",
        ),
        pytest.param(
            WORKER.serving("1").silent(PROBE_SECONDS + 1).unready(),
            Standing.ABSENT,
            id="a silent worker that is not ready gets no clients",
        ),
        pytest.param(
            WORKER.serving("1").silent(1).unready(),
            Standing.UNKNOWN,
            id="a silent worker admitted before its first probe may serve",
        ),
        pytest.param(
            WORKER.joining("1").silent(1).unready(),
            Standing.ABSENT,
            id="a silent joining worker does not serve",
        ),
        pytest.param(
            WORKER.joining("1").silent(1).unready().that_may_open(),
            Standing.UNKNOWN,
            id="a silent joining worker whose admission got no answer may serve",
        ),
        pytest.param(
            WORKER.joining("1").silent(PROBE_SECONDS).unready().that_may_open(),
            Standing.ABSENT,
            id="the probe has taken a silent worker out of the Service",
        ),
        pytest.param(
            WORKER.joining("1").silent(1).unready().asked_to("stage 2"),
            Standing.ABSENT,
            id="no other call opens a silent joining worker",
        ),
        pytest.param(WORKER, Standing.UNKNOWN, id="a ready worker without a state may serve"),
        pytest.param(
            WORKER.unready(), Standing.ABSENT, id="an unready worker without a state is absent"
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
def test_the_standing_of_a_worker(worker, standing):
    assert worker.view().standing is standing


@pytest.mark.parametrize(
    ("worker", "operation", "busy"),
    [
        pytest.param(WORKER, None, False, id="nothing is known of it"),
        pytest.param(WORKER.serving("1"), None, False, id="it is idle"),
        pytest.param(
            WORKER.serving("1").doing("stage", "2"), work("stage 2"), True, id="it stages"
        ),
        pytest.param(WORKER.serving("1").doing("pause"), work("pause"), True, id="it pauses"),
        pytest.param(WORKER.serving("1").asked_to("stage 2"), None, True, id="it is being asked"),
    ],
)
def test_work_is_known_by_the_workers_report_or_by_our_call(worker, operation, busy):
    view = worker.view()

    assert (view.operation, view.busy) == (operation, busy)


def test_the_version_of_a_worker_without_a_state_is_unknown():
    assert WORKER.view().version is None
    assert WORKER.view().loaded is None
    assert WORKER.view().staged is None


def test_the_oldest_weightversion_steers_the_base_weights_in_any_order():
    older = make_weights("1", name="b", uid="b", created_at=NOW)
    newer = make_weights("2", name="a", uid="a", created_at=NOW + timedelta(seconds=1))

    assert make_fleet(wants=[newer, older]).base_weights == older
    assert make_fleet(wants=[older, newer]).base_weights == older


def test_the_first_name_of_two_weightversions_of_the_same_second_steers():
    one, two = make_weights("1", name="a", uid="z"), make_weights("2", name="b", uid="y")

    assert make_fleet(wants=[two, one]).base_weights == one


def test_a_fleet_without_a_weightversion_has_no_desired_version():
    assert make_fleet().base_weights is None
