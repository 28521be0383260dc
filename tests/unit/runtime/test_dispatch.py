"""Questions and calls to many workers: waited for a moment, never for the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

import pytest
from tests.support import virtual_time
from tests.support.builders import make_worker, target, work
from tests.support.sessions import make_session
from tests.support.virtual_time import now

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_calls as make_call
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.worker_view import PodView
from fleet_operator.ports import NOT_LEADING, Addressee, WorkerAnswer
from fleet_operator.runtime.attempts import FIRST_SECONDS, LONGEST_SECONDS
from fleet_operator.runtime.defects import UNPLANNED_SECONDS
from fleet_operator.runtime.dispatch import (
    ANSWER_WAIT_SECONDS,
    FOLD_SECONDS,
    FOLD_SECONDS_EACH,
    SENT_AT_ONCE,
    Caller,
    Dispatcher,
    fold_seconds,
)
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_operator.time_shares import TimeShares
from fleet_worker.protocol import Epoch, Reason, WantedRequest, WorkerState

pytestmark = pytest.mark.virtual_time

EPOCH = Epoch(term=3, sequence=1)
Behaviour = Callable[[str], Awaitable[WorkerAnswer]]


def state(version: str = "1", *, epoch: Epoch | None = None) -> WorkerState:
    found = make_worker().serving(version).state()
    assert found is not None
    return found.model_copy(update={"epoch": epoch})


async def at_once(_: str) -> WorkerAnswer:
    return WorkerAnswer(state=state())


def after(seconds: float, answer: WorkerAnswer | None = None) -> Behaviour:
    async def behave(_: str) -> WorkerAnswer:
        await asyncio.sleep(seconds)
        return answer or WorkerAnswer(state=state("2"))

    return behave


def never(*_: object) -> asyncio.Future[WorkerAnswer]:
    return asyncio.get_running_loop().create_future()


class Harness:
    """Calls, and all their results."""

    def __init__(self, asked: Behaviour = at_once, called: Behaviour = at_once) -> None:
        self.asked, self.called = asked, called
        self.sent: list[tuple[Addressee, str, Epoch]] = []
        self.again: list[tuple[float, float]] = []
        self.metrics, self.cache = Metrics(), WorkerCache()
        self.leads = True
        self.session = make_session()
        self.caller = Caller(session=self.session, token="t", admin_port=8081, epoch=EPOCH)
        self.calls = Dispatcher(
            self,
            self.cache,
            self.metrics,
            requeue=lambda _, seconds: self.again.append((now(), seconds)),
            shares=TimeShares(),
            leads=lambda: self.leads,
        )

    async def state(self, worker: Addressee) -> WorkerAnswer:
        return await self.asked(worker.base_url)

    async def tell(self, worker: Addressee, _: WantedRequest) -> WorkerAnswer:
        return await self.state(worker)

    async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        self.sent.append((worker, str(action.work), epoch))
        return await self.called(worker.base_url)

    def problems(self) -> list[str]:
        """The parts of the fleet's work that fail."""
        return [problem.part for problem in self.session.problems.all()]

    async def act(self, *actions: WorkerCall) -> bool:
        for action in actions:
            self.cache.view(pod(int(action.pod_name[-1])), now())
        return await self.calls.act(self.caller, actions, {f"uid-{n}": pod(n) for n in range(10)})


def pod(ordinal: int = 0) -> PodView:
    return make_worker(ordinal)._pod(ip=f"10.0.0.{ordinal}").pod_view()


def load(ordinal: int = 0, version: str = "2") -> WorkerCall:
    worker = make_worker(ordinal).view()
    return make_call.load(worker, target(version), Rollout(), reason="")


async def test_a_call_goes_to_the_pods_admin_port_with_token_and_epoch():
    harness = Harness()
    assert await harness.act(load(3))
    url = "http://10.0.0.3:8081"
    worker = Addressee(base_url=url, token="t", pod_uid="uid-3", namespace="rl")
    assert harness.sent == [(worker, "load 2", EPOCH)]


async def test_a_call_is_for_the_process_that_answered_last():
    harness = Harness()
    await harness.calls.ask(harness.caller, [pod(3)])
    await harness.act(load(3))
    ((worker, _, _),) = harness.sent
    assert (worker.pod_uid, worker.instance) == ("uid-3", state().instance)


@pytest.mark.parametrize(
    ("ip", "url"),
    [
        pytest.param("10.0.0.1", "http://10.0.0.1:8081", id="IPv4"),
        pytest.param("fd00::7", "http://[fd00::7]:8081", id="IPv6"),
    ],
)
def test_addresses(ip, url):
    caller = Caller(session=make_session(), token="t", admin_port=8081, epoch=EPOCH)
    assert caller.addressee(make_worker()._pod(ip=ip).pod_view()).base_url == url


class TestWaiting:
    async def test_quick_answers_are_waited_for(self):
        harness = Harness(called=after(0.1))
        await harness.act(*(load(n) for n in range(5)))
        assert now() - virtual_time.START_SECONDS == pytest.approx(0.1)
        assert harness.again == []
        assert all(harness.cache.view(pod(n), now()).version == "2" for n in range(5))

    async def test_slow_answers_are_not_waited_for_and_ask_for_another_look(self):
        harness = Harness(called=after(5))
        assert await harness.act(load())
        assert now() - virtual_time.START_SECONDS == pytest.approx(ANSWER_WAIT_SECONDS)
        assert harness.cache.view(pod(), now()).call == work("load 2")
        await asyncio.sleep(6)
        ((at, seconds),) = harness.again
        assert at - virtual_time.START_SECONDS == pytest.approx(5)
        assert seconds == 0, "no other answer is waited for"

    async def test_the_more_calls_are_under_way_the_longer_their_ends_are_folded(self):
        async def behave(url: str) -> WorkerAnswer:
            ordinal = int(url.removesuffix(":8081")[-1])
            return await after(1 + ordinal)(url)

        harness = Harness(called=behave)
        await harness.act(*(load(n) for n in range(10)))
        assert fold_seconds(harness.session.calls) == FOLD_SECONDS + 10 * FOLD_SECONDS_EACH
        await asyncio.sleep(11)

        left = range(9, 0, -1)
        assert [s for _, s in harness.again[:-1]] == [
            pytest.approx(FOLD_SECONDS + n * FOLD_SECONDS_EACH) for n in left
        ]
        assert harness.again[-1][1] == 0, "nothing else is waited for"
        assert fold_seconds(harness.session.calls) == FOLD_SECONDS

    async def test_cancelled_calls_are_not_counted(self):
        harness = Harness(called=after(600))
        await harness.act(*(load(n) for n in range(5)))
        assert fold_seconds(harness.session.calls) > FOLD_SECONDS
        await harness.calls.stop()
        await asyncio.sleep(0)
        assert fold_seconds(harness.session.calls) == FOLD_SECONDS

    async def test_a_silent_worker_does_not_keep_questions_to_the_others_waiting(self):
        async def behave(url: str) -> WorkerAnswer:
            return await (after(3) if "10.0.0.4" in url else at_once)(url)

        harness = Harness(asked=behave)
        await harness.calls.ask(harness.caller, [pod(n) for n in range(10)])
        assert now() - virtual_time.START_SECONDS == pytest.approx(ANSWER_WAIT_SECONDS)
        known = [n for n in range(10) if harness.cache.view(pod(n), now()).state]
        assert known == [0, 1, 2, 3, 5, 6, 7, 8, 9]

    @pytest.mark.parametrize("what", ["reads", "calls"])
    async def test_thousands_of_requests_leave_the_event_loop_its_turns(self, what):
        """Sent in one go, those to 10,000 workers would stop it for a second."""

        harness, seen = Harness(), set[int]()
        workers = Mock(state=Mock(side_effect=never), call=Mock(side_effect=never))
        harness.calls._workers = workers
        pods = [pod(n) for n in range(SENT_AT_ONCE * 7 // 5)]
        if what == "reads":
            sending = asyncio.create_task(harness.calls.ask(harness.caller, pods))
        else:
            loads = [load(n) for n in range(len(pods))]
            by_uid = {p.uid: p for p in pods}
            sending = asyncio.create_task(harness.calls.act(harness.caller, loads, by_uid))
        while len(pods) not in seen:
            await asyncio.sleep(0)
            seen.add(workers.state.call_count + workers.call.call_count)
        assert seen >= {SENT_AT_ONCE, len(pods)}
        sending.cancel()
        await harness.calls.stop()

    async def test_a_round_without_workers_takes_no_time(self):
        harness = Harness()
        await harness.calls.ask(harness.caller, [])
        assert not await harness.act()

    async def test_thousands_of_calls_that_last_do_not_keep_questions_waiting(self):
        """Staging takes minutes; a pause of another fleet must not wait for it."""

        harness = Harness(called=after(600))
        for n in range(5000):
            view = make_worker(n).view()
            action = make_call.stage(view, target("2"), Rollout(), reason="")
            harness.cache.view(view.pod, now())
            await harness.calls.act(harness.caller, [action], {view.pod.uid: view.pod})
        started = now()
        await harness.calls.ask(harness.caller, [pod(1)])
        assert now() - started < 0.1
        harness.called = at_once
        assert await harness.act(load(2))
        assert harness.cache.view(pod(2), now()).call is None
        await harness.calls.stop()


class TestOnce:
    async def test_a_call_in_flight_is_not_sent_again(self):
        harness = Harness(called=after(5))
        assert await harness.act(load())
        assert not await harness.act(load())
        assert len(harness.sent) == 1
        await harness.calls.stop()

    async def test_another_call_takes_the_place_of_the_one_in_flight(self):
        harness = Harness(called=after(5))
        await harness.act(load(version="2"))
        await harness.act(load(version="3"))
        assert harness.cache.call_in_flight("uid-0") == work("load 3")
        await asyncio.sleep(10)
        assert harness.cache.call_in_flight("uid-0") is None
        assert len(harness.again) >= 1

    async def test_a_refused_call_is_not_repeated_at_once(self):
        refused = WorkerAnswer(state=state(), reason=Reason.WRONG_PHASE, message="no")
        harness = Harness(called=after(0.01, refused))
        assert await harness.act(load())
        assert not await harness.act(load())
        await asyncio.sleep(1.1)
        assert await harness.act(load())

    async def test_a_different_call_after_a_refusal_is_sent_at_once(self):
        refused = WorkerAnswer(state=state(), reason=Reason.NOT_STAGED, message="no")
        harness = Harness(called=after(0.01, refused))
        await harness.act(load(version="2"))
        assert await harness.act(load(version="3"))

    async def test_a_call_that_takes_the_place_of_its_successor_is_not_ended_by_its_own_past(self):
        harness = Harness(called=after(5))
        for version in ("2", "3", "2"):
            await harness.act(load(version=version))
            await asyncio.sleep(FIRST_SECONDS)
        assert harness.cache.view(pod(), now()).call == work("load 2")
        await asyncio.sleep(10)
        assert [key for _, key, _ in harness.sent] == ["load 2", "load 3", "load 2"]
        assert harness.cache.view(pod(), now()).silence == ""


async def test_a_call_takes_no_task_of_its_own():
    """At thousands of calls their tasks would cost as much as all the rest."""

    harness, answer = Harness(), asyncio.get_running_loop().create_future()
    harness.calls._workers = Mock(call=Mock(return_value=answer))
    acting = asyncio.create_task(harness.act(*(load(n) for n in range(10))))
    await asyncio.sleep(0)
    assert harness.cache.call_in_flight("uid-9") == work("load 2")
    assert asyncio.all_tasks() == {asyncio.current_task(), acting}
    answer.set_result(WorkerAnswer(state=state("2")))
    await acting
    assert harness.cache.view(pod(9), now()).version == "2"


class TestDefects:
    @pytest.mark.parametrize("where", ["sending", "answering"])
    async def test_a_call_that_raises_ends_at_once_and_is_reported(self, where, caplog):
        harness, fails = Harness(), RuntimeError("a defect")

        async def answers(_: str) -> WorkerAnswer:
            raise fails

        if where == "sending":
            harness.calls._workers = Mock(call=Mock(side_effect=fails))
        else:
            harness.called = answers
        started = now()
        await harness.act(load())
        assert now() == started
        view = harness.cache.view(pod(), now())
        assert (view.call, view.silence) == (None, "the call was cancelled")
        (record,) = caplog.records
        assert record.exc_info[1] is fails


class TestOutcomes:
    @pytest.mark.parametrize(
        ("answer", "outcome"),
        [
            pytest.param(WorkerAnswer(state=state("2")), "done", id="done"),
            pytest.param(WorkerAnswer(state=state("1")), "NoEffect", id="without an effect"),
            pytest.param(
                WorkerAnswer(state=state(), reason=Reason.NOT_STAGED), "NotStaged", id="refused"
            ),
            pytest.param(
                WorkerAnswer(state=state(), reason="KeyMissing"), "other", id="of a newer release"
            ),
            pytest.param(WorkerAnswer(silent=True, message="reset"), "silent", id="silent"),
        ],
    )
    async def test_outcomes_are_counted(self, answer, outcome):
        harness = Harness(called=after(0.01, answer))
        await harness.act(load())
        shown = harness.metrics.render().decode()
        assert f'rlfleet_worker_calls_total{{kind="load",outcome="{outcome}"}} 1.0' in shown

    @pytest.mark.parametrize(
        ("reason", "warned"), [(Reason.VERSION_MISMATCH, False), (Reason.NOT_STAGED, True)]
    )
    async def test_a_call_for_weights_that_a_worker_has_replaced_warns_of_nothing(
        self, reason, warned, caplog
    ):
        """A trainer may load others between the read of the state and the call."""
        harness = Harness(called=after(0.01, WorkerAnswer(state=state("3"), reason=reason)))
        await harness.act(load())
        assert [r.levelname for r in caplog.records] == ["WARNING"] * warned

    async def test_a_call_that_a_worker_refuses_again_warns_once(self, caplog):
        """Each refusal was a detail, however often the same call met it."""
        refused = WorkerAnswer(state=state("3"), reason=Reason.VERSION_MISMATCH)
        done = WorkerAnswer(state=state("2"))
        answers = [refused, refused, refused, done, refused, refused]
        harness = Harness(called=after(0.01, refused))
        warned = []
        for answer in answers:
            harness.called = after(0.01, answer)
            caplog.clear()
            await harness.act(load())
            await asyncio.sleep(LONGEST_SECONDS + 1)
            warned.append(bool(caplog.records))
        assert warned == [False, True, False, False, False, True]

    async def test_a_refusal_as_old_is_noted_with_the_epoch_that_the_worker_obeys(self):
        obeyed = Epoch(term=9, sequence=0)
        stale = WorkerAnswer(state=state(epoch=obeyed), reason=Reason.STALE_EPOCH)
        harness = Harness(called=after(0.01, stale))
        await harness.act(load())
        assert harness.session.epochs.refused == obeyed.term

    async def test_a_fleet_is_not_called_until_the_leader_is_known(self):
        harness = Harness()
        harness.session.epochs.note_refusal(pod(), Epoch(term=9, sequence=0))
        assert not await harness.act(load())
        assert harness.sent == []
        harness.session.epochs.raise_above(9)
        assert await harness.act(load())
        assert len(harness.sent) == 1

    @pytest.mark.parametrize("how", ["asked", "called"])
    async def test_a_refused_token_is_reported(self, how):
        denied = after(0.01, WorkerAnswer(reason=Reason.UNAUTHORIZED, message="wrong token"))
        harness = Harness(**{how: denied})
        harness.session.token.last = "t"
        assert not harness.session.token.is_due
        if how == "asked":
            await harness.calls.ask(harness.caller, [pod()])
        else:
            await harness.act(load())
        assert harness.session.token.is_due

    async def test_a_cancelled_read_leaves_the_worker_silent(self):
        harness = Harness(asked=after(100))
        await harness.calls.ask(harness.caller, [pod()])
        await harness.calls.stop()
        assert harness.cache.view(pod(), now()).silence == "the state read was cancelled"
        assert harness.cache.is_due(pod(), now() + 60, max_age_seconds=30)


async def test_stopping_cancels_everything_in_flight():
    harness = Harness(asked=after(100), called=after(100))
    await harness.calls.ask(harness.caller, [pod(1)])
    await harness.act(load())
    before = now()
    await harness.calls.stop()
    assert now() == before
    assert harness.cache.call_in_flight("uid-0") is None
    assert harness.cache.view(pod(), now()).silence == "the call was cancelled"


async def test_a_request_that_raises_in_the_operator_is_reported_until_its_kind_works_again():
    async def broken(_: str) -> WorkerAnswer:
        raise KeyError("load")

    harness = Harness(called=broken)
    await harness.act(load(3))
    assert harness.problems() == ["requests to workers (load)"]

    harness.called = at_once
    await asyncio.sleep(2)
    await harness.act(load(3, "3"))
    assert harness.problems() == []


async def a_defect(_: str) -> WorkerAnswer:
    raise KeyError("load")


async def problems_after(harness: Harness, *actions: WorkerCall, seconds: float) -> list[str]:
    """The parts that fail after decisions that plan these calls for these seconds."""
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        await harness.act(*actions)
    return harness.problems()


async def test_the_problem_of_a_request_that_raises_ends_when_its_kind_is_not_planned():
    """An adapter that cannot be loaded is removed from the spec."""

    harness = Harness(called=a_defect)
    await harness.act(load(3))
    assert await problems_after(harness, load(3), seconds=60)
    assert await problems_after(harness, seconds=UNPLANNED_SECONDS - 1)
    assert await problems_after(harness, seconds=2) == []


async def test_a_read_that_raises_is_a_problem_while_the_fleet_has_workers():
    harness = Harness(asked=a_defect)
    await harness.calls.ask(harness.caller, [pod(3)])
    assert await problems_after(harness, seconds=2 * UNPLANNED_SECONDS)
    await harness.calls.act(harness.caller, [], {})
    await asyncio.sleep(UNPLANNED_SECONDS)
    await harness.calls.act(harness.caller, [], {})
    assert harness.problems() == []


async def test_a_process_that_does_not_lead_calls_no_worker_and_may_read():
    """Silence, not a refusal: the next leader is to look before it concludes anything."""

    harness = Harness()
    harness.leads = False
    await harness.act(load())
    assert harness.sent == []
    assert harness.cache.view(pod(), now()).silence == NOT_LEADING
    await asyncio.sleep(1)
    await harness.calls.ask(harness.caller, [pod()])
    assert harness.cache.view(pod(), now()).state is not None
