"""What every worker last said: answers belong to one process, and late ones change nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import pytest
from tests.support import virtual_time
from tests.support.builders import make_worker

from fleet_operator.core.observed import PodView, Standing
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.worker_book import WorkerBook
from fleet_worker.protocol import Reason

POD = make_worker().pod_view()
SILENT = WorkerAnswer(silent=True, message="no route")


def says(version: str, *, instance: str = "i-1") -> WorkerAnswer:
    state = make_worker().serving(version).state()
    assert state is not None
    return WorkerAnswer(state=state.model_copy(update={"instance": instance}))


def restarted(times: int) -> PodView:
    return replace(POD, restarts=times)


def ask(
    book: WorkerBook, at: float, answer: WorkerAnswer, *, answered: float | None = None
) -> None:
    book.begin_question(POD, at)
    book.end_question(POD, answer, at if answered is None else answered)


def due(book: WorkerBook, now: float, pod: PodView = POD) -> bool:
    return book.is_due(pod, now, max_age_seconds=10)


class TestKnowing:
    def test_of_a_new_pod_nothing_is_known(self):
        view = WorkerBook().view(POD, 5)

        assert (view.state, view.state_age_seconds, view.silent_seconds) == (None, 0, 0)

    def test_an_answer_ages(self):
        book = WorkerBook()
        ask(book, 5, says("1"))

        assert book.view(POD, 8).version == "1"
        assert book.view(POD, 8).state_age_seconds == 3

    def test_silence_lasts_from_the_first_question_without_an_answer(self):
        book = WorkerBook()
        ask(book, 5, says("1"))
        ask(book, 6, SILENT)
        ask(book, 9, SILENT)
        view = book.view(POD, 10)

        assert (view.silent_seconds, view.silence, view.version) == (4, "no route", "1")
        assert view.standing is Standing.UNKNOWN

    def test_a_worker_that_was_silent_this_very_moment_counts_as_silent(self):
        book = WorkerBook()
        ask(book, 5, SILENT)

        assert book.view(POD, 5).silent_seconds > 0

    def test_an_answer_ends_the_silence(self):
        book = WorkerBook()
        ask(book, 5, SILENT)
        ask(book, 6, says("1"))

        assert (book.view(POD, 7).silent_seconds, book.view(POD, 7).silence) == (0, "")

    def test_a_refusal_that_tells_no_state_tells_nothing(self):
        book = WorkerBook()
        ask(book, 5, WorkerAnswer(reason=Reason.UNAUTHORIZED, message="no bearer token"))

        assert book.view(POD, 6).silence == "no bearer token"


class TestAsking:
    def test_a_new_worker_is_asked_once_at_a_time(self):
        book = WorkerBook()
        assert due(book, 1)
        book.begin_question(POD, 1)
        assert not due(book, 100)

    @pytest.mark.parametrize(
        "pod",
        [
            pytest.param(replace(POD, running=False), id="nothing runs"),
            pytest.param(replace(POD, ip=None), id="it has no address"),
            pytest.param(replace(POD, deleting=True), id="it goes"),
        ],
    )
    def test_nobody_is_asked_where(self, pod):
        assert not due(WorkerBook(), 1, pod)

    def test_it_is_asked_again_when_its_answer_is_old(self):
        book = WorkerBook()
        ask(book, 5, says("1"))

        assert not due(book, 14)
        assert due(book, 16)

    def test_a_silent_worker_is_not_asked_more_often_than_others(self):
        book = WorkerBook()
        ask(book, 5, SILENT)

        assert not due(book, 14)
        assert due(book, 16)

    @pytest.mark.parametrize("ready", [True, False])
    def test_it_is_asked_at_once_when_the_kubelet_sees_a_change(self, ready):
        book, before = WorkerBook(), replace(POD, ready=not ready)
        book.begin_question(before, 5)
        book.end_question(before, says("1"), 5)
        assert not due(book, 6, before)

        assert due(book, 6, replace(POD, ready=ready))

    def test_it_is_asked_at_once_when_the_end_of_a_call_is_not_known(self):
        async def story() -> None:
            book = WorkerBook()
            ask(book, 5, says("1"))
            begin(book, "load 2")
            book.end_call(POD.uid, "load 2", SILENT, 6)
            assert due(book, 6)

        asyncio.run(story())


def begin(book: WorkerBook, key: str) -> asyncio.Task[None]:
    book.view(POD, 0)
    task = asyncio.create_task(asyncio.sleep(3600))
    book.begin_call(POD.uid, key, task)
    return task


class TestCalling:
    def test_the_answer_to_a_call_is_what_is_known(self):
        async def story() -> None:
            book = WorkerBook()
            begin(book, "load 2")
            assert book.view(POD, 5).call == book.call_in_flight(POD.uid) == "load 2"
            book.end_call(POD.uid, "load 2", says("2"), 6)
            assert book.view(POD, 6).call == book.call_in_flight(POD.uid) == ""
            assert book.view(POD, 6).version == "2"

        asyncio.run(story())

    def test_a_question_from_before_the_end_of_a_call_is_too_old(self):
        """It may have been answered before the call took effect."""

        async def story() -> None:
            book = WorkerBook()
            book.view(POD, 0)
            book.begin_question(POD, 5)
            begin(book, "load 2")
            book.end_call(POD.uid, "load 2", says("2"), 6)
            book.end_question(POD, says("1"), 7)
            assert book.view(POD, 7).version == "2"

        asyncio.run(story())

    def test_a_question_from_after_the_end_of_a_call_counts(self):
        async def story() -> None:
            book = WorkerBook()
            begin(book, "load 2")
            book.end_call(POD.uid, "load 2", SILENT, 6)
            ask(book, 7, says("2"))
            assert book.view(POD, 7).version == "2"
            assert book.view(POD, 7).silent_seconds == 0

        asyncio.run(story())

    def test_another_call_gives_up_the_one_in_flight(self):
        async def story() -> None:
            book = WorkerBook()
            first = begin(book, "stage 2")
            second = begin(book, "stage 3")
            await asyncio.wait([first], timeout=1)
            assert first.cancelled()
            book.end_call(POD.uid, "stage 2", says("late"), 6)
            assert book.call_in_flight(POD.uid) == "stage 3"
            assert book.view(POD, 6).state is None, "the end of a given-up call changes nothing"
            second.cancel()

        asyncio.run(story())

    def test_all_calls_in_flight_can_be_given_up(self):
        async def story() -> None:
            book = WorkerBook()
            task = begin(book, "stage 2")
            assert book.tasks() == [task]
            book.end_call(POD.uid, "stage 2", says("1"), 6)
            assert book.tasks() == []
            task.cancel()

        asyncio.run(story())

    def test_of_a_pod_that_nobody_knows_no_call_is_in_flight(self):
        assert WorkerBook().call_in_flight("nobody") == ""
        WorkerBook().end_call("nobody", "load 2", SILENT, 1)


class TestRestarts:
    def test_a_new_container_has_said_nothing_and_nothing_is_asked_of_it(self):
        async def story() -> None:
            book = WorkerBook()
            ask(book, 5, says("1"))
            task = begin(book, "load 2")
            view = book.view(restarted(1), 6)
            assert (view.state, view.call) == (None, "")
            await asyncio.wait([task], timeout=1)
            assert task.cancelled()

        asyncio.run(story())

    def test_the_end_of_a_call_to_the_process_before_changes_nothing(self):
        async def story() -> None:
            book = WorkerBook()
            begin(book, "load 2")
            book.view(restarted(1), 6)
            book.end_call(POD.uid, "load 2", says("2"), 7)
            assert book.view(restarted(1), 7).state is None

        asyncio.run(story())

    def test_a_late_answer_of_the_process_before_changes_nothing_about_the_new_one(self):
        async def story() -> None:
            book, new = WorkerBook(), restarted(1)
            book.view(POD, 0)
            book.begin_question(POD, 5)
            book.begin_question(new, 6)
            book.end_question(new, says("1", instance="i-2"), 6)
            task = asyncio.create_task(asyncio.sleep(3600))
            book.begin_call(new.uid, "load 2", task)
            book.end_question(POD, says("0"), 7)
            view = book.view(new, 7)
            await asyncio.sleep(0)
            assert (view.version, view.call) == ("1", "load 2")
            assert not task.cancelling(), "the call to the new process was given up"
            task.cancel()

        asyncio.run(story())


class TestForgetting:
    def test_pods_that_are_gone_are_forgotten_with_their_calls(self):
        async def story() -> None:
            book, other = WorkerBook(), make_worker(1).pod_view()
            task = begin(book, "load 2")
            book.view(other, 0)
            book.forget_all_but({other.uid})
            await asyncio.wait([task], timeout=1)
            assert task.cancelled()
            assert book.tasks() == []

        asyncio.run(story())

    def test_a_call_to_a_pod_that_was_forgotten_in_between_is_no_accident(self):
        async def story() -> None:
            book = WorkerBook()
            book.view(POD, 0)
            book.forget_all_but(set())
            task = asyncio.create_task(asyncio.sleep(3600))
            book.begin_call(POD.uid, "load 2", task)
            assert book.call_in_flight(POD.uid) == "load 2"
            task.cancel()

        asyncio.run(story())


def test_time_is_what_the_caller_says():
    """The book has no clock of its own."""

    async def story() -> None:
        book = WorkerBook()
        ask(book, 5, says("1"))
        await asyncio.sleep(100)
        assert book.view(POD, 6).state_age_seconds == 1

    virtual_time.run(story())


def test_a_call_for_an_earlier_process_makes_the_operator_look_again():
    book = WorkerBook()
    ask(book, 5, says("1"))
    assert not book.is_due(POD, 6, max_age_seconds=100)
    task = mock.Mock()
    book.begin_call(POD.uid, "load 2", task)
    refused = WorkerAnswer(
        state=says("1").state, reason=Reason.STALE_CALL, message="another process"
    )
    book.end_call(POD.uid, "load 2", refused, 7)

    assert book.is_due(POD, 8, max_age_seconds=100)


def test_the_process_that_answered_last_is_known():
    book = WorkerBook()
    assert book.instance(POD.uid) == ""
    ask(book, 5, says("1", instance="i-7"))
    assert book.instance(POD.uid) == "i-7"
    ask(book, 6, SILENT)
    assert book.instance(POD.uid) == "i-7"
