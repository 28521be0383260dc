"""A decision waits for what it cannot do without, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.builders import call_for, make_worker, work
from tests.support.sessions import make_session
from tests.support.virtual_time import now

from fleet_operator.core.worker_view import PodView
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_operator.runtime import callers
from fleet_operator.runtime.callers import BUSY_SECONDS, Callers
from fleet_operator.runtime.dispatch import ANSWER_WAIT_SECONDS, Caller, Dispatcher
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_operator.time_shares import TimeShares
from fleet_worker.protocol import Epoch, Operation, WantedRequest, WorkerState

pytestmark = pytest.mark.virtual_time

EPOCH = Epoch(term=3, sequence=1)
HANG_SECONDS = 3.0
SILENCE = WorkerAnswer(silent=True, message="there is no answer after 3 s")


def pod(ordinal: int) -> PodView:
    return make_worker(ordinal)._pod(ip=f"10.0.0.{ordinal}").pod_view()


def state() -> WorkerState:
    reported = make_worker().serving("1").state()
    assert reported is not None
    return reported


class Harness:
    """Reads of ten workers. `seconds`: how long each takes, by ordinal. `cost_seconds`: of the loop, for each answer.
    `dead`: these never answer.
    """

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.cost_seconds = 0.0
        self.shares = TimeShares()
        self.dead: set[int] = set()
        self.external = False
        self.changed: dict[str, Any] = {}
        self.looks: list[bool] = []
        self.asked: list[int] = []
        self.again: list[float] = []
        self.cache = WorkerCache()
        self.caller = Caller(session=make_session(), token="t", admin_port=8081, epoch=EPOCH)
        self.pods = [pod(n) for n in range(10)]
        calls = Dispatcher(
            self,
            self.cache,
            Metrics(),
            requeue=lambda _, seconds: self.again.append(seconds),
            shares=self.shares,
        )
        informer = Mock()
        informer.pods_of.side_effect = lambda _: self.pods
        self.callers = Callers(
            calls=calls,
            pods=informer,
            worker_cache=self.cache,
            resync_seconds=30,
        )

    async def state(self, worker: Addressee) -> WorkerAnswer:
        ordinal = int(worker.base_url.removesuffix(":8081")[-1])
        self.asked.append(ordinal)
        if ordinal in self.dead:
            await asyncio.sleep(HANG_SECONDS)
            return SILENCE
        await asyncio.sleep(self.seconds.get(ordinal, 0))
        changed = state().model_copy(update=self.changed)
        return WorkerAnswer(state=changed, cost_seconds=self.cost_seconds)

    async def tell(self, worker: Addressee, _: WantedRequest) -> WorkerAnswer:
        return await self.state(worker)

    async def call(self, *_: object) -> WorkerAnswer:
        raise AssertionError("no story calls a worker")

    async def took(self, reading: Callable[[Caller], Awaitable[None]]) -> float:
        """Seconds that it keeps a reconcile waiting."""
        began = now()
        await reading(self.caller)
        seconds = now() - began
        await asyncio.sleep(0)  # Lets the reads leave.
        return seconds

    async def ask(self, caller: Caller) -> None:
        await self.callers.ask(caller, external=self.external)

    async def poll(self, caller: Caller) -> None:
        await self.callers.poll(caller, often={p.uid for p in self.pods})

    def known(self) -> list[int]:
        return [n for n, p in enumerate(self.pods) if self.cache.view(p, now()).state is not None]


@pytest.fixture
async def harness() -> Harness:
    return Harness()


async def test_workers_that_were_never_read_are_waited_for(harness):
    harness.seconds = {3: 0.1}
    assert await harness.took(harness.ask) == pytest.approx(0.1)
    assert harness.known() == list(range(10))


async def test_the_time_that_answers_cost_counts_for_the_namespace_of_their_fleet(harness):
    harness.cost_seconds = 0.3
    harness.shares.note("another", 0.1, now())
    namespace, _ = harness.caller.session.key
    assert not harness.shares.wait_seconds(namespace, now())

    await harness.took(harness.ask)

    assert harness.shares.wait_seconds(namespace, now()) > 1
    assert not harness.shares.wait_seconds("another", now())


async def test_a_worker_that_left_a_read_unanswered_is_read_again_without_waiting(harness):
    harness.dead = {4}
    assert await harness.took(harness.ask) == pytest.approx(ANSWER_WAIT_SECONDS)
    for _ in range(5):
        await asyncio.sleep(HANG_SECONDS + BUSY_SECONDS)
        harness.asked.clear()
        assert await harness.took(harness.ask) == 0
        assert await harness.took(harness.poll) == 0
        assert 4 in harness.asked
    harness.dead.clear()
    harness.again.clear()
    await asyncio.sleep(HANG_SECONDS + BUSY_SECONDS)
    await harness.poll(harness.caller)
    await asyncio.sleep(1)
    assert harness.known() == list(range(10))
    assert harness.again, "the end of the silence asks for another look"


async def test_an_old_answer_is_renewed_without_a_wait(harness):
    await harness.ask(harness.caller)
    await asyncio.sleep(BUSY_SECONDS)
    harness.seconds = dict.fromkeys(range(10), 0.2)
    harness.asked.clear()
    assert await harness.took(harness.ask) == 0
    assert await harness.took(harness.poll) == 0
    assert sorted(harness.asked) == list(range(10))


@pytest.mark.parametrize(
    ("external", "asked"),
    [(True, [n for n in range(10) if n != 3]), (False, [])],
    ids=["a trainer updates all workers", "the operator knows what it updates"],
)
async def test_when_one_worker_has_other_weights_the_others_are_read(external, asked, harness):
    harness.external = external
    for _ in range(2):  # the first answers are changes, too
        await harness.ask(harness.caller)
        await asyncio.sleep(0.1)
    harness.asked.clear()
    await harness.ask(harness.caller)
    assert harness.asked == [], "nothing has changed"
    harness.changed = {"version": "2"}
    await harness.callers.poll(harness.caller, often={harness.pods[3].uid})
    await asyncio.sleep(BUSY_SECONDS)
    await harness.callers.poll(harness.caller, often={harness.pods[3].uid})
    await asyncio.sleep(0.1)
    assert set(harness.asked) == {3}
    harness.asked.clear()

    await harness.ask(harness.caller)

    assert sorted(harness.asked) == asked
    versions = {harness.cache.view(p, now()).version for p in harness.pods}
    assert versions == ({"2"} if external else {state().version, "2"})


async def test_only_news_asks_for_another_look(harness):
    await harness.ask(harness.caller)
    for changed in (
        {"uptime_seconds": 99.0, "sessions": 7},
        {"requests_running": 3},
        {"requests_running": 5},
        {"version": "2"},
        {"operation": Operation(kind="stage", version="3", running_seconds=1.0)},
        {"operation": Operation(kind="stage", version="3", running_seconds=2.0)},
        {"operation": Operation(kind="load", version="3", running_seconds=0.0)},
    ):
        harness.changed |= changed
        harness.again.clear()
        await asyncio.sleep(BUSY_SECONDS)
        await harness.poll(harness.caller)
        await asyncio.sleep(0.5)
        harness.looks.append(bool(harness.again))
        (seen,) = {harness.cache.view(p, now()).state for p in harness.pods[:1]}
        assert seen == state().model_copy(update=harness.changed), "it is known all the same"
    assert harness.looks == [False, True, False, True, True, False, True]


async def test_a_call_without_an_answer_is_followed_by_a_read_that_is_waited_for(harness):
    await harness.ask(harness.caller)
    harness.cache.begin_call("uid-2", work("load 2"), Mock(), now(), epoch=EPOCH)
    harness.cache.end_call(call_for("load 2", "uid-2"), SILENCE, now() + 1)
    harness.seconds = {2: 0.1}
    assert await harness.took(harness.ask) == pytest.approx(0.1)


async def test_a_worker_with_a_call_in_flight_is_read_when_the_call_takes_long(harness):
    await harness.ask(harness.caller)
    await asyncio.sleep(20)
    harness.cache.begin_call("uid-2", work("load 2"), Mock(), now(), epoch=EPOCH)
    harness.asked.clear()
    await harness.poll(harness.caller)
    await asyncio.sleep(0)
    assert 2 not in harness.asked
    await asyncio.sleep(BUSY_SECONDS)
    await harness.poll(harness.caller)
    await asyncio.sleep(0)
    assert 2 in harness.asked


async def test_more_workers_than_can_be_read_in_a_second_are_read_less_often(monkeypatch, harness):
    monkeypatch.setattr(callers, "READS_PER_SECOND", 2)

    await harness.ask(harness.caller)
    harness.asked.clear()
    await asyncio.sleep(4 * BUSY_SECONDS)
    assert await harness.took(harness.poll) == 0
    assert harness.asked == [], "ten workers at two a second"
    await asyncio.sleep(BUSY_SECONDS)
    assert await harness.took(harness.poll) == 0
    assert sorted(harness.asked) == list(range(10))
