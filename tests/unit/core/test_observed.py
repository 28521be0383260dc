"""A worker's possible effect on clients is judged on the safe side."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker, work

from fleet_operator.core.worker_view import PROBE_SECONDS, Standing

WORKER = make_worker()


SERVING, PAUSED, JOINING = WORKER.serving("1"), WORKER.paused("1"), WORKER.joining("1")
GONE = WORKER.joining("1").silent(1).unready()
"""Silent, and closed when it answered last."""
STANDINGS = {
    Standing.OPEN: {
        "it serves": SERVING,
        "it pauses": WORKER.pausing("1"),
        "it is closed and lets requests end": WORKER.pausing("1").reporting(admitted=False),
    },
    Standing.HELD: {"it is paused": PAUSED, "it loads": WORKER.loading("1", "2")},
    Standing.CLOSED: {
        "it reports that it serves, closed": SERVING.reporting(admitted=False),
        "it joins": JOINING,
        "it joins and is ready": JOINING.ready(),
        "it joins and loads": JOINING.reporting(phase="loading"),
        "it was paused before its admission": JOINING.reporting(phase="paused"),
        "it starts": WORKER.starting(),
        "it is broken": WORKER.broken(),
        "it drains": WORKER.draining("1"),
    },
    Standing.UNKNOWN: {
        "it is silent and ready": SERVING.silent(),
        "it is silent and may have resumed": PAUSED.silent(),
        "it is silent and was admitted before its first probe": SERVING.silent(1).unready(),
        "it is silent and its admission got no answer": GONE.that_may_open(),
        "it is ready without a state": WORKER,
    },
    Standing.ABSENT: {
        "it is silent and gets no clients": SERVING.silent(PROBE_SECONDS + 1).unready(),
        "it is silent and joined": GONE,
        "its admission got no answer before the last probe": GONE.silent(
            PROBE_SECONDS
        ).that_may_open(),
        "another call to it got no answer": GONE.asked_to("stage 2"),
        "it is unready without a state": WORKER.unready(),
        "its pod goes": SERVING.going(),
        "it is quarantined": SERVING.quarantined(),
        "it has no container": SERVING.not_running(),
    },
}


@pytest.mark.parametrize("standing", STANDINGS)
def test_the_standing_of_a_worker(standing):
    found = {why: worker.view().standing for why, worker in STANDINGS[standing].items()}

    assert found == dict.fromkeys(found, standing)


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
