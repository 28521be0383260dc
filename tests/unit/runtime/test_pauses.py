"""When the first pause of a fleet's workers ends, as far as the operator knows."""

from __future__ import annotations

from tests.support.builders import make_worker

from fleet_operator.runtime.pauses import Pauses
from fleet_worker.protocol import WorkerState


def paused(lease_seconds: float) -> WorkerState:
    state = make_worker().paused("1", lease_seconds=lease_seconds).state()
    assert state is not None
    return state


def serving() -> WorkerState:
    state = make_worker().serving("1").state()
    assert state is not None
    return state


def test_the_first_end_of_a_fleet_counts():
    pauses = Pauses()
    pauses.note("a", paused(25), now=100)
    pauses.note("b", paused(12), now=100)

    assert pauses.deadline(now=101) == 112


def test_a_call_that_pauses_counts_before_its_answer():
    pauses = Pauses()
    pauses.begin("a", 30, now=100)

    assert pauses.deadline(now=101) == 130


def test_a_renewal_moves_the_end_and_a_resume_removes_it():
    pauses = Pauses()
    pauses.note("a", paused(5), now=100)
    pauses.note("a", paused(30), now=102)
    assert pauses.deadline(now=103) == 132

    pauses.note("a", serving(), now=104)
    assert pauses.deadline(now=104) is None


def test_a_pause_of_a_worker_that_is_gone_ends_by_itself():
    pauses = Pauses()
    pauses.note("gone", paused(5), now=100)
    pauses.note("b", paused(30), now=100)

    assert pauses.deadline(now=106) == 130
    assert pauses.deadline(now=131) is None
    assert not pauses._ends
