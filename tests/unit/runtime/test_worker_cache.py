"""The last answer of every worker: answers belong to one process, and late ones change nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import pytest
from tests.support.builders import call_for, make_worker, work
from tests.support.present import present

from fleet_operator.core.work import Ended
from fleet_operator.core.worker_view import PodView, Standing
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.worker_cache import LARGE_BYTES, MAX_LARGE_BYTES, WorkerCache
from fleet_worker.protocol import AdapterFailure, Epoch, Reason

pytestmark = pytest.mark.virtual_time

POD = make_worker().pod_view()
EPOCH = Epoch(term=1, sequence=1)
SILENT = WorkerAnswer(silent=True, message="no route")


def says(version: str, *, instance: str = "i-1") -> WorkerAnswer:
    state = present(make_worker().serving(version).state())
    return WorkerAnswer(state=state.model_copy(update={"instance": instance}))


def joins(epoch: Epoch | None) -> WorkerAnswer:
    """One whose latch is closed."""
    state = present(make_worker().joining("1").state())
    return WorkerAnswer(state=state.model_copy(update={"epoch": epoch}))


def holds(version: str) -> WorkerAnswer:
    """One that holds its requests: its lease runs out."""
    return WorkerAnswer(state=make_worker().paused(version).state())


def refuses_adapter(age_seconds: float) -> WorkerAnswer:
    state = present(make_worker().serving("1").state())
    failure = AdapterFailure(
        name="a",
        version="1",
        reason=Reason.SOURCE_NOT_FOUND,
        message="",
        age_seconds=age_seconds,
    )
    refused = {"adapter_failure": failure, "adapter_failures": (failure, failure)}
    return WorkerAnswer(state=state.model_copy(update=refused))


def restarted(times: int) -> PodView:
    return replace(POD, restarts=times)


def ask(
    cache: WorkerCache, at: float, answer: WorkerAnswer, *, answered: float | None = None
) -> None:
    cache.begin_read(POD, at)
    cache.end_read(POD, answer, at if answered is None else answered, term=0)


def due(cache: WorkerCache, now: float, pod: PodView = POD) -> bool:
    return cache.is_due(pod, now, max_age_seconds=10)


class TestLostCalls:
    """A call without an answer may still take effect."""

    KEY = work("stage 2")

    async def called(self, cache: WorkerCache, answer: WorkerAnswer) -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        cache.begin_call(POD.uid, self.KEY, task, 0, epoch=EPOCH)
        await task
        cache.end_call(call_for(self.KEY), answer, 7)

    async def test_a_call_without_an_answer_is_remembered_until_the_worker_answers(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        await self.called(cache, SILENT)
        assert cache.view(POD, 8).lost_calls == (self.KEY,)
        ask(cache, 8, SILENT)
        assert cache.view(POD, 9).lost_calls == (self.KEY,)
        ask(cache, 9, says("1"))
        assert cache.view(POD, 9).lost_calls == ()

    def test_a_call_counts_as_lost_when_its_container_has_restarted(self):
        """The news of the restart may be late, so that the call went to the new process."""
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        cache.begin_call(POD.uid, self.KEY, mock.Mock(), 6, epoch=EPOCH)

        assert cache.view(restarted(1), 7).lost_calls == (self.KEY,)
        cache.begin_read(restarted(1), 8)
        cache.end_read(restarted(1), says("1"), 8, term=0)
        assert cache.view(restarted(1), 9).lost_calls == ()

    @pytest.mark.parametrize("in_flight", [True, False], ids=["in flight", "without an answer"])
    def test_an_admission_may_open_the_worker_also_after_the_news_of_a_restart(self, in_flight):
        """The news may be late, so that the admission went to the new process."""
        cache, pod = WorkerCache(), restarted(1)
        ask(cache, 5, joins(EPOCH))
        cache.begin_call(POD.uid, work("admit 1"), mock.Mock(), 6, epoch=EPOCH)
        if not in_flight:
            cache.end_call(call_for("admit 1"), SILENT, 7)
        assert cache.view(pod, 8).may_open
        assert cache.view(pod, 8).lost_calls == (work("admit 1"),)
        for epoch, may in ((EPOCH, True), (Epoch(term=1, sequence=2), False)):
            cache.begin_read(pod, 9)
            cache.end_read(pod, joins(epoch), 9, term=1)
            assert cache.view(pod, 9).may_open is may

    def test_the_last_comparison_counts_from_its_call_on_if_the_worker_did_not_refuse_it(self):
        key = work("compare 2")
        refused = WorkerAnswer(state=says("1").state, reason=Reason.VERSION_REUSED)

        def compared(answer: WorkerAnswer) -> None:
            cache.begin_call(POD.uid, key, mock.Mock(), 2, epoch=EPOCH)
            cache.end_call(call_for(key), answer, 7)

        cache = WorkerCache()
        same = [(key, 6.0)]
        for answer, known in ((says("1"), same), (refused, []), (says("1"), same), (SILENT, [])):
            compared(answer)
            assert [(c.work, c.seconds) for c in cache.view(POD, 8).compared] == known

    async def test_an_admission_without_an_answer_may_open_the_worker_until_it_accepts_a_newer_epoch(
        self,
    ):
        cache = WorkerCache()
        ask(cache, 5, joins(EPOCH))
        assert not cache.view(POD, 5).may_open
        for text in ("admit 1", "stage 2"):
            task = asyncio.create_task(asyncio.sleep(0))
            cache.begin_call(POD.uid, work(text), task, 6, epoch=EPOCH)
            assert cache.view(POD, 6).may_open
            await task
            cache.end_call(call_for(text), SILENT, 7)
        for epoch, may in ((EPOCH, True), (Epoch(term=1, sequence=2), False), (EPOCH, False)):
            ask(cache, 9, joins(epoch))
            assert cache.view(POD, 9).may_open is may

    async def test_an_answered_admission_leaves_no_doubt(self):
        cache = WorkerCache()
        ask(cache, 5, joins(EPOCH))
        task = asyncio.create_task(asyncio.sleep(0))
        cache.begin_call(POD.uid, work("admit 1"), task, 6, epoch=EPOCH)
        await task
        cache.end_call(call_for("admit 1"), says("1"), 7)
        assert not cache.view(POD, 8).may_open

    @pytest.mark.parametrize("epoch", [None, Epoch(term=1, sequence=9), Epoch(term=2, sequence=0)])
    def test_an_earlier_leader_may_have_admitted_a_worker_that_has_not_accepted_this_term(
        self, epoch
    ):
        cache = WorkerCache()
        cache.begin_read(POD, 5)
        cache.end_read(POD, joins(epoch), 5, term=2)

        assert cache.view(POD, 5).may_open is (epoch is None or epoch.term < 2)

    async def test_an_entry_whose_call_is_cancelled_for_another_is_lost(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        given_up, other = (asyncio.create_task(asyncio.sleep(60)) for _ in range(2))
        cache.begin_call(POD.uid, self.KEY, given_up, 0, epoch=EPOCH)
        cache.begin_call(POD.uid, work("fence"), other, 0, epoch=EPOCH)
        assert cache.view(POD, 6).lost_calls == (self.KEY,)
        cache.end_call(call_for("fence"), says("1"), 7)
        assert cache.view(POD, 7).lost_calls == ()
        other.cancel()

    def test_a_later_lost_call_hides_an_earlier_one_of_the_same_kind_only(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        for text in ("stage 2", "resume 1", "stage 3", "stage-adapter a 1", "stage-adapter b 1"):
            cache.begin_call(POD.uid, work(text), mock.Mock(), 6, epoch=EPOCH)
            cache.end_call(call_for(text), SILENT, 7)

        assert {str(lost) for lost in cache.view(POD, 8).lost_calls} == {
            "resume 1",
            "stage 3",
            "stage-adapter a 1",
            "stage-adapter b 1",
        }
        ask(cache, 9, says("1"))
        assert cache.view(POD, 9).lost_calls == ()


class TestLookingAgain:
    """Parts that have not changed since the last read cost nothing at this one."""

    def test_a_worker_that_has_not_changed_is_the_same_object(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))

        assert cache.view(POD, 8) is cache.view(POD, 6)

    @pytest.mark.parametrize(
        "answer",
        [
            holds("1"),
            WorkerAnswer(state=make_worker().serving("1").doing("stage", "2").state()),
            WorkerAnswer(
                state=make_worker().serving("1").refused("2", Reason.SOURCE_NOT_FOUND).state()
            ),
            WorkerAnswer(state=make_worker().joining(None).failed_to_load("2").state()),
            refuses_adapter(0),
        ],
        ids=["a lease", "work", "a refusal", "a load that failed", "the refusal of an adapter"],
    )
    def test_a_state_ages_with_the_clock(self, answer):
        cache = WorkerCache()
        ask(cache, 5, answer)

        ages = [cache.view(POD, at).state_age_seconds for at in (6, 9)]
        assert ages == [1, 4]

    def test_only_its_age_asks_for_no_other_look(self):
        cache = WorkerCache()
        ask(cache, 5, refuses_adapter(0))
        cache.begin_read(POD, 6)

        assert not cache.end_read(POD, refuses_adapter(1), 6, term=0)

    async def test_a_call_is_seen_when_it_begins_and_when_it_ends(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        before = cache.view(POD, 6)
        task = asyncio.create_task(asyncio.sleep(0))
        cache.begin_call(POD.uid, work("stage 2"), task, 0, epoch=EPOCH)
        during = cache.view(POD, 6)
        await task
        cache.end_call(call_for("stage 2"), says("2"), 7)
        after = cache.view(POD, 8)
        assert [before.call, during.call, after.call] == [None, work("stage 2"), None]
        assert [before.version, during.version, after.version] == ["1", "1", "2"]

    def test_so_is_a_change_of_its_pod(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        assert not cache.view(POD, 6).pod.deleting

        assert cache.view(replace(POD, deleting=True), 7).standing is Standing.ABSENT


class TestKnowing:
    def test_nothing_is_known_of_a_new_pod(self):
        view = WorkerCache().view(POD, 5)

        assert (view.state, view.state_age_seconds, view.silent_seconds) == (None, 0, 0)

    def test_silence_lasts_from_the_first_question_without_an_answer(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        ask(cache, 6, SILENT)
        ask(cache, 9, SILENT)
        view = cache.view(POD, 10)

        assert (view.silent_seconds, view.silence, view.version) == (4, "no route", "1")
        assert view.standing is Standing.UNKNOWN

    def test_what_a_silent_worker_holds_it_holds_longer_with_each_question(self):
        cache = WorkerCache()
        ask(cache, 1.0, holds("1"))
        before = cache.view(POD, 1.0).held_seconds
        for at in range(2, 100):
            ask(cache, float(at), SILENT)

        assert cache.view(POD, 99.0).held_seconds == before + 98

    def test_a_worker_that_was_silent_this_very_moment_counts_as_silent(self):
        cache = WorkerCache()
        ask(cache, 5, SILENT)

        assert cache.view(POD, 5).silent_seconds > 0

    def test_a_refusal_that_tells_no_state_tells_nothing(self):
        cache = WorkerCache()
        ask(cache, 5, WorkerAnswer(reason=Reason.UNAUTHORIZED, message="no bearer token"))

        assert cache.view(POD, 6).silence == "no bearer token"


class TestAsking:
    def test_a_new_worker_is_read_once_at_a_time(self):
        cache = WorkerCache()
        assert due(cache, 1)
        cache.begin_read(POD, 1)
        assert not due(cache, 100)

    @pytest.mark.parametrize(
        "pod",
        [
            pytest.param(replace(POD, running=False), id="nothing runs"),
            pytest.param(replace(POD, ip=None), id="it has no address"),
            pytest.param(replace(POD, deleting=True), id="it goes"),
        ],
    )
    def test_no_worker_is_polled_where(self, pod):
        assert not due(WorkerCache(), 1, pod)

    @pytest.mark.parametrize("answer", [says("1"), SILENT], ids=["an answer", "silence"])
    def test_a_worker_is_read_again_when_its_answer_is_old(self, answer):
        cache = WorkerCache()
        ask(cache, 5, answer)

        assert not due(cache, 14)
        assert due(cache, 16)

    @pytest.mark.parametrize("ready", [True, False])
    def test_a_worker_is_read_again_when_the_kubelet_sees_a_change(self, ready):
        cache, before = WorkerCache(), replace(POD, ready=not ready)
        cache.begin_read(before, 5)
        cache.end_read(before, says("1"), 5, term=0)
        assert not due(cache, 6, before)

        assert due(cache, 6, replace(POD, ready=ready))

    def test_the_silence_of_a_worker_begins_when_its_process_listens(self):
        """A new fleet lost a worker at each start. It counted as silent for as long as its engine had
        started, and the operator quarantined it when the first of the others opened.
        """
        starting = replace(POD, started=False, ready=False)
        up = replace(starting, started=True)
        cache = WorkerCache()
        cache.begin_read(starting, 5)
        cache.end_read(starting, SILENT, 5, term=0)
        assert cache.view(starting, 30).silent_seconds == 25

        assert cache.view(up, 30).silent_seconds == 0
        assert due(cache, 30, up)
        assert cache.is_unknown(up)
        cache.begin_read(up, 30)
        cache.end_read(up, SILENT, 31, term=0)
        assert cache.view(up, 33).silent_seconds == 2

    def test_the_silence_of_a_worker_that_has_answered_continues_when_its_kubelet_restarts(self):
        """The kubelet reports no start then until the startup probe has passed once more."""
        cache, again = WorkerCache(), replace(POD, started=not POD.started)
        ask(cache, 5, says("1"))
        ask(cache, 10, SILENT)

        assert cache.view(again, 30).silent_seconds == 20
        assert due(cache, 30, again)

    def test_a_worker_is_read_again_when_the_end_of_a_call_is_not_known(self):
        async def story() -> None:
            cache = WorkerCache()
            ask(cache, 5, says("1"))
            begin(cache, "load 2")
            cache.end_call(call_for("load 2"), SILENT, 6)
            assert due(cache, 6)

        asyncio.run(story())


def begin(cache: WorkerCache, key: str) -> asyncio.Task[None]:
    cache.view(POD, 0)
    task = asyncio.create_task(asyncio.sleep(3600))
    cache.begin_call(POD.uid, work(key), task, 0, epoch=EPOCH)
    return task


class TestTelling:
    """Once for each news, and again only after a refusal: a silent worker would be called without a break."""

    @pytest.mark.parametrize(
        ("answer", "was_told"),
        [
            (says("1"), True),
            (SILENT, True),
            (replace(says("1"), reason=Reason.STALE_CALL), False),
        ],
    )
    def test_a_worker_hears_again_what_it_has_refused_to_hear(self, answer, was_told):
        cache = WorkerCache()
        ask(cache, 1.0, says("1"))
        assert not cache.was_told(POD, ("2",))
        cache.begin_read(POD, 2.0)
        cache.note_told(POD, ("2",))
        assert cache.was_told(POD, ("3",))  # one call at a time
        cache.end_read(POD, answer, 3.0, term=0)

        assert cache.was_told(POD, ("2",)) == was_told
        assert not cache.was_told(POD, ("3",))


class TestCalling:
    async def test_the_answer_to_a_call_is_what_is_known(self):
        cache = WorkerCache()
        begin(cache, "load 2")
        assert cache.view(POD, 5).call == cache.call_in_flight(POD.uid) == work("load 2")
        cache.end_call(call_for("load 2"), says("2"), 6)
        assert cache.view(POD, 6).call is cache.call_in_flight(POD.uid) is None
        assert cache.view(POD, 6).version == "2"

    async def test_a_question_from_before_the_end_of_a_call_is_too_old(self):
        """It may have been answered before the call took effect."""

        cache = WorkerCache()
        cache.view(POD, 0)
        cache.begin_read(POD, 5)
        begin(cache, "load 2")
        cache.end_call(call_for("load 2"), says("2"), 6)
        cache.end_read(POD, says("1"), 7, term=0)
        assert cache.view(POD, 7).version == "2"

    async def test_another_call_cancels_the_one_in_flight(self):
        cache = WorkerCache()
        first = begin(cache, "stage 2")
        second = begin(cache, "stage 3")
        await asyncio.wait([first], timeout=1)
        assert first.cancelled()
        cache.end_call(call_for("stage 2"), says("late"), 6)
        assert cache.call_in_flight(POD.uid) == work("stage 3")
        assert cache.view(POD, 6).state is None, "the end of a given-up call changes nothing"
        second.cancel()

    def test_the_call_before_may_report_its_end_while_it_is_cancelled(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        first, again = mock.Mock(), mock.Mock()
        first.done.return_value = False
        first.cancel.side_effect = lambda: cache.end_call(call_for("stage 2"), SILENT, 6)
        cache.begin_call(POD.uid, work("stage 2"), first, 0, epoch=EPOCH)
        cache.begin_call(POD.uid, work("stage 3"), again, 0, epoch=EPOCH)
        view = cache.view(POD, 7)

        assert (view.call, view.lost_calls, view.silence) == (
            work("stage 3"),
            (work("stage 2"),),
            "",
        )

    def test_no_call_to_an_unknown_pod_is_in_flight(self):
        assert WorkerCache().call_in_flight("nobody") is None
        WorkerCache().end_call(call_for("load 2", "nobody"), SILENT, 1)


class TestOtherWork:
    def test_the_time_of_the_last_load_or_fence_is_known_also_after_a_restart(self):
        def does(kind: str, version: str | None = None) -> WorkerAnswer:
            return WorkerAnswer(state=make_worker().serving("1").doing(kind, version).state())

        cache = WorkerCache()
        ask(cache, 1, does("stage", "3"))
        assert cache.view(POD, 1).ended is None, "it gets its next call meanwhile"
        for at, answer in ((2, does("apply", "2")), (3, does("apply", "2")), (4, says("2"))):
            ask(cache, at, answer)
        assert cache.view(POD, 9).ended == Ended(work("apply 2"), 3, 1.0)
        assert cache.view(restarted(1), 10).ended == Ended(work("apply 2"), 3, 1.0)
        ask(cache, 11, does("fence"))
        assert cache.view(POD, 12).ended == Ended(work("fence"), 11, 1.0)


class TestRestarts:
    async def test_a_new_container_has_no_answer_and_no_call(self):
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        task = begin(cache, "load 2")
        view = cache.view(restarted(1), 6)
        assert (view.state, view.call) == (None, None)
        await asyncio.wait([task], timeout=1)
        assert task.cancelled()

    @pytest.mark.parametrize("instance", ["i-1", "i-2"])
    def test_calls_that_are_not_followed_belong_to_the_process_that_answered(self, instance):
        """The news of a restart may be late, so that the new process has answered before."""
        cache = WorkerCache()
        ask(cache, 5, says("1"))
        for at in (6, 7):
            cache.begin_call(POD.uid, work("stage 2"), mock.Mock(), at, epoch=EPOCH)
            cache.end_call(call_for("stage 2"), says("1"), at)
        for news in (1, 2):
            assert cache.view(restarted(news), 7).unheeded == ()
        cache.begin_read(restarted(2), 7)
        cache.end_read(restarted(2), says("1", instance=instance), 7, term=0)

        assert bool(cache.view(restarted(2), 7).unheeded) is (instance == "i-1")
        assert cache.must_wait(POD.uid, work("stage 2"), 8) is (instance == "i-1")

    async def test_a_late_answer_of_the_process_before_changes_nothing_about_the_new_one(self):
        cache, new = WorkerCache(), restarted(1)
        cache.view(POD, 0)
        cache.begin_read(POD, 5)
        cache.begin_read(new, 6)
        cache.end_read(new, says("1", instance="i-2"), 6, term=0)
        task = asyncio.create_task(asyncio.sleep(3600))
        cache.begin_call(new.uid, work("load 2"), task, 0, epoch=EPOCH)
        cache.end_read(POD, says("0"), 7, term=0)
        view = cache.view(new, 7)
        await asyncio.sleep(0)
        assert (view.version, view.call) == ("1", work("load 2"))
        assert not task.cancelling(), "the call to the new process was given up"
        task.cancel()


class TestForgetting:
    async def test_pods_that_are_gone_are_forgotten_with_their_calls(self):
        cache, other = WorkerCache(), make_worker(1).pod_view()
        task = begin(cache, "load 2")
        cache.view(other, 0)
        cache.forget_all_but({other.uid})
        await asyncio.wait([task], timeout=1)
        assert task.cancelled()
        assert cache.call_in_flight(POD.uid) is None


def test_a_call_for_an_earlier_process_makes_the_operator_poll_again():
    cache = WorkerCache()
    ask(cache, 5, says("1"))
    assert not cache.is_due(POD, 6, max_age_seconds=100)
    task = mock.Mock()
    cache.begin_call(POD.uid, work("load 2"), task, 0, epoch=EPOCH)
    refused = WorkerAnswer(
        state=says("1").state, reason=Reason.STALE_CALL, message="another process"
    )
    cache.end_call(call_for("load 2"), refused, 7)

    assert cache.is_due(POD, 8, max_age_seconds=100)


def test_the_process_that_answered_last_is_known():
    cache = WorkerCache()
    assert cache.instance(POD.uid) == ""
    ask(cache, 5, says("1", instance="i-7"))
    assert cache.instance(POD.uid) == "i-7"
    ask(cache, 6, SILENT)
    assert cache.instance(POD.uid) == "i-7"


class TestLargeAnswers:
    """A state is kept as long as its pod is there, so that those of hostile workers add up."""

    PODS = tuple(make_worker(n)._pod(ip=f"10.0.0.{n}").pod_view() for n in range(4))

    def filled(self, *sizes: int) -> WorkerCache:
        """Answers of this size, one of each pod in turn."""
        cache = WorkerCache()
        for pod, size in zip(self.PODS, sizes, strict=False):
            cache.begin_read(pod, 1)
            cache.end_read(pod, replace(says("1"), size_bytes=size), 2, term=1)
        return cache

    def silent(self, cache: WorkerCache) -> list[str]:
        """Names of the workers that count as silent, of which no state is left."""
        views = [cache.view(pod, 3) for pod in self.PODS]
        assert all((v.state is None) is bool(v.silence) for v in views if v.state or v.silence)
        return [v.pod.name for v in views if v.silence]

    def test_beyond_the_budget_the_worker_with_the_longest_answer_counts_as_silent(self):
        half = MAX_LARGE_BYTES // 2
        cache = self.filled(half, half - 1, 2 * LARGE_BYTES)

        assert self.silent(cache) == ["policy-0"]
        assert str(MAX_LARGE_BYTES) in cache.view(self.PODS[0], 3).silence

    @pytest.mark.parametrize("end", ["gone", "restarted", "shorter", "called"])
    def test_an_answer_counts_until_another_takes_its_place(self, end):
        cache = self.filled(MAX_LARGE_BYTES)
        first, second, *_ = self.PODS
        match end:
            case "gone":
                cache.forget_all_but({second.uid})
            case "restarted":
                cache.view(make_worker(0).restarted(1)._pod(ip="10.0.0.0").pod_view(), 3)
            case "shorter":
                cache.begin_read(first, 3)
                cache.end_read(first, replace(says("1"), size_bytes=2000), 4, term=1)
            case _:
                call = work("load 1")
                cache.begin_call(first.uid, call, mock.Mock(), 3, epoch=EPOCH)
                cache.end_call(call_for(call, first.uid), replace(says("1"), size_bytes=2000), 4)
        cache.begin_read(second, 5)
        cache.end_read(second, replace(says("1"), size_bytes=MAX_LARGE_BYTES), 6, term=1)

        assert cache.view(second, 7).silence == ""
