"""Keys are worked on when they are due, one at a time, and none is forgotten."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.virtual_time import START_SECONDS, now

from fleet_operator.runtime.workqueue import RUNS_AT_ONCE, RUNS_PER_SECOND, WorkQueue

Work = Callable[[str], Awaitable[None]]


class Diary:
    """The keys that were worked on, with start and end."""

    def __init__(self, *, takes_seconds: float = 0) -> None:
        self.takes_seconds = takes_seconds
        self.begun: list[tuple[str, float]] = []
        self.ended: list[tuple[str, float]] = []
        self.active: set[str] = set()

    async def work(self, key: str) -> None:
        assert key not in self.active, f"{key} is worked on twice at once"
        self.active.add(key)
        self.begun.append((key, now() - START_SECONDS))
        await asyncio.sleep(self.takes_seconds)
        self.active.discard(key)
        self.ended.append((key, now() - START_SECONDS))


async def run_for(queue: WorkQueue[str], work: Work, seconds: float, *, workers: int = 2) -> None:
    running = asyncio.create_task(queue.run(work, workers=workers))
    await asyncio.sleep(seconds)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_key_is_worked_on_at_once():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        queue.add("a")
        await run_for(queue, diary.work, 1)

        assert diary.begun == [("a", 0)]

    virtual_time.run(story())


def test_a_key_that_is_added_ten_times_is_worked_on_once():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        for _ in range(10):
            queue.add("a")
        await run_for(queue, diary.work, 1)

        assert diary.begun == [("a", 0)]

    virtual_time.run(story())


@pytest.mark.parametrize(
    ("delays", "begun"),
    [
        pytest.param([5], [5], id="a delay is kept"),
        pytest.param([5, 2], [2], id="the earlier of two times counts"),
        pytest.param([2, 5], [2], id="in whichever order they were asked for"),
        pytest.param([5, 0], [0], id="now is earlier than later"),
        pytest.param([-3], [0], id="a time that has passed is now"),
    ],
)
def test_delays(delays, begun):
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        for delay in delays:
            queue.add("a", after_seconds=delay)
        await run_for(queue, diary.work, 20)

        assert [when for _, when in diary.begun] == begun

    virtual_time.run(story())


def test_a_key_that_is_added_while_it_is_worked_on_runs_once_more_afterwards():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=3)
        running = asyncio.create_task(run_for(queue, diary.work, 20, workers=4))
        queue.add("a")
        await asyncio.sleep(1)
        for _ in range(5):
            queue.add("a")
        await running

        assert diary.begun == [("a", 0), ("a", 3)]

    virtual_time.run(story())


def test_keys_do_not_wait_for_each_other_while_a_worker_is_free():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=5)
        for key in "abc":
            queue.add(key)
        await run_for(queue, diary.work, 20, workers=2)

        assert diary.begun == [("a", 0), ("b", 0), ("c", 5)]

    virtual_time.run(story())


def test_a_key_that_is_due_while_it_is_worked_on_does_not_keep_others_waiting():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=5)
        running = asyncio.create_task(run_for(queue, diary.work, 20, workers=2))
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("b")
        queue.add("c", after_seconds=2)
        await running

        assert diary.begun == [("a", 0), ("b", 1), ("a", 5), ("c", 6)]

    virtual_time.run(story())


def test_a_cancelled_task_of_the_work_ends_no_worker_and_the_key_runs_again():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        parts: list[asyncio.Task[None]] = []

        async def work(key: str) -> None:
            if len(parts) < 3:
                parts.append(asyncio.create_task(asyncio.sleep(60)))
                asyncio.get_running_loop().call_later(1, parts[-1].cancel)
                await parts[-1]
            await diary.work(key)

        queue.add("a")
        await run_for(queue, work, 10, workers=1)

        assert diary.begun == [("a", 3)]

    virtual_time.run(story())


def test_an_idle_queue_wakes_up_for_a_new_key():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        running = asyncio.create_task(run_for(queue, diary.work, 20, workers=3))
        await asyncio.sleep(7)
        queue.add("a")
        await running

        assert diary.begun == [("a", 7)]

    virtual_time.run(story())


def test_a_sleeping_queue_wakes_up_for_an_earlier_time():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary()
        queue.add("late", after_seconds=15)
        running = asyncio.create_task(run_for(queue, diary.work, 20, workers=1))
        await asyncio.sleep(1)
        queue.add("soon", after_seconds=2)
        await running

        assert diary.begun == [("soon", 3), ("late", 15)]

    virtual_time.run(story())


def test_depth_counts_what_is_due_and_waits():
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=5)
        for key in "abc":
            queue.add(key)
        queue.add("later", after_seconds=100)
        assert queue.depth() == 3
        running = asyncio.create_task(run_for(queue, diary.work, 20, workers=1))
        await asyncio.sleep(1)
        assert queue.depth() == 2
        queue.add("a")
        assert queue.depth() == 2, "a key that is being worked on does not wait"
        await running
        assert queue.depth() == 0

    virtual_time.run(story())


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.floats(0, 10, allow_nan=False),
            st.floats(-1, 10, allow_nan=False),
        ),
        max_size=30,
    ),
    workers=st.integers(1, 4),
    takes=st.sampled_from((0.0, 0.5, 3.0)),
)
def test_every_request_is_done_in_time_never_twice_at_once_and_never_unrequested(
    asked, workers, takes
):
    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=takes)
        running = asyncio.create_task(run_for(queue, diary.work, 500, workers=workers))
        wanted: list[tuple[str, float, float]] = []

        async def ask(key: str, at: float, delay: float) -> None:
            await asyncio.sleep(at)
            asked_at = now() - START_SECONDS
            wanted.append((key, asked_at, asked_at + max(delay, 0)))
            queue.add(key, after_seconds=delay)

        await asyncio.gather(*(ask(*question) for question in asked))
        await running
        slack = takes * (len(asked) + 1) + 1e-6
        for key, asked_at, due in wanted:
            begun = [t for k, t in diary.begun if k == key]
            # It may be merged into a run that was due earlier and had not begun then.
            assert any(asked_at <= t <= due + slack for t in begun), (key, asked_at, due, begun)
            assert max(begun) <= max(d for k, _, d in wanted if k == key) + slack
        for key in "abc":
            assert len([k for k, _ in diary.begun if k == key]) <= len(
                [k for k, *_ in wanted if k == key]
            )

    virtual_time.run(story())


@given(st.lists(st.floats(0, 5, allow_nan=False), min_size=1, max_size=20))
def test_a_key_begins_once_more_after_its_last_request(times):
    """No change is lost: the work that begins last sees everything from before the request."""

    async def story() -> None:
        queue, diary = WorkQueue[str](), Diary(takes_seconds=1)
        running = asyncio.create_task(run_for(queue, diary.work, 100, workers=3))
        for time in sorted(times):
            await asyncio.sleep(max(time - (now() - START_SECONDS), 0))
            queue.add("a")
        last = now() - START_SECONDS
        await running

        assert diary.begun[-1][1] >= last

    virtual_time.run(story())


class TestTheBoundOfOneKey:
    """Whatever adds a key, it is worked on only so often."""

    @staticmethod
    async def spin(queue: WorkQueue[str], seconds: float) -> dict[str, list[float]]:
        """The key `spins` is added again at once, `rests` once a second."""
        runs: dict[str, list[float]] = {"spins": [], "rests": []}

        async def work(key: str) -> None:
            runs[key].append(now())
            await asyncio.sleep(0.001)
            queue.add(key, after_seconds=0 if key == "spins" else 1.0)

        for key in runs:
            queue.add(key)
        await run_for(queue, work, seconds)
        return runs

    def test_a_key_that_is_added_again_at_once_is_held_back(self):
        async def story() -> None:
            runs = await self.spin(WorkQueue(), 60)
            bound = RUNS_AT_ONCE + 60 * RUNS_PER_SECOND
            assert bound * 0.9 < len(runs["spins"]) <= bound + 1
            for n, at in enumerate(runs["spins"][:-RUNS_AT_ONCE]):
                within = sum(at <= t < at + 1 for t in runs["spins"][n:])
                assert within <= RUNS_AT_ONCE + RUNS_PER_SECOND + 1

        virtual_time.run(story())

    def test_it_delays_no_other_key(self):
        async def story() -> None:
            runs = await self.spin(WorkQueue(), 60)
            gaps = [b - a for a, b in itertools.pairwise(runs["rests"])]
            assert len(gaps) > 50
            assert max(gaps) < 1.1

        virtual_time.run(story())

    def test_after_a_rest_it_may_run_as_often_at_once_as_before(self):
        async def story() -> None:
            queue = WorkQueue[str]()
            await self.spin(queue, 30)
            await asyncio.sleep(RUNS_AT_ONCE / RUNS_PER_SECOND)
            runs = await self.spin(queue, 0.9)
            assert len(runs["spins"]) >= RUNS_AT_ONCE

        virtual_time.run(story())

    def test_it_is_logged_once(self, caplog):
        async def story() -> None:
            await self.spin(WorkQueue(), 60)

        virtual_time.run(story())
        assert [r.getMessage().partition(" ")[0] for r in caplog.records] == ["spins"]

    def test_keys_that_rest_are_forgotten(self):
        async def story() -> None:
            queue, diary = WorkQueue[str](), Diary()
            for n in range(5 * RUNS_AT_ONCE):
                queue.add(f"key-{n}", after_seconds=float(n))
            await run_for(queue, diary.work, 5 * RUNS_AT_ONCE)
            assert len(queue._budgets) <= RUNS_AT_ONCE + 2

        virtual_time.run(story())
