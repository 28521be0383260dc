"""Keys are worked on when they are due, one at a time, and none is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.virtual_time import START_SECONDS, now

from fleet_operator.runtime.workqueue import RUNS_AT_ONCE, RUNS_PER_SECOND, WorkQueue
from fleet_operator.time_shares import TimeShares

pytestmark = pytest.mark.virtual_time

Work = Callable[[str], Coroutine[Any, Any, None]]


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


def a_queue(
    *,
    workers: int = 2,
    urgent_workers: int = 1,
    deadlines: dict[str, float] | None = None,
    shares: TimeShares | None = None,
    begun: Callable[[str, float], None] = lambda *_: None,
) -> WorkQueue[str]:
    """A queue of keys; `tenant/name` or just a name. `deadlines`: of keys that have one."""
    return WorkQueue(
        workers=workers,
        urgent_workers=urgent_workers,
        tenant=lambda key: key.partition("/")[0],
        deadline=lambda key, _: (deadlines or {}).get(key),
        shares=shares or TimeShares(),
        begun=begun,
    )


async def run_for(queue: WorkQueue[str], work: Work, seconds: float) -> None:
    running = asyncio.create_task(queue.run(work))
    await asyncio.sleep(seconds)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_time_is_counted_for_which_a_key_was_due():
    waits: list[tuple[str, float]] = []
    queue = a_queue(workers=1, begun=lambda key, seconds: waits.append((key, seconds)))
    diary = Diary(takes_seconds=2)
    queue.add("a")
    queue.add("b", after_seconds=0.5)
    await run_for(queue, diary.work, 5)

    assert waits == [("a", pytest.approx(0)), ("b", pytest.approx(1.5))]


async def test_a_key_is_worked_on_at_once():
    queue, diary = a_queue(), Diary()
    queue.add("a")
    await run_for(queue, diary.work, 1)

    assert diary.begun == [("a", 0)]


async def test_a_key_that_is_added_ten_times_is_worked_on_once():
    queue, diary = a_queue(), Diary()
    for _ in range(10):
        queue.add("a")
    await run_for(queue, diary.work, 1)

    assert diary.begun == [("a", 0)]


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
async def test_delays(delays, begun):
    queue, diary = a_queue(), Diary()
    for delay in delays:
        queue.add("a", after_seconds=delay)
    await run_for(queue, diary.work, 20)

    assert [when for _, when in diary.begun] == begun


async def test_a_key_that_is_added_while_it_is_worked_on_runs_once_more_afterwards():
    queue, diary = a_queue(workers=4), Diary(takes_seconds=3)
    running = asyncio.create_task(run_for(queue, diary.work, 20))
    queue.add("a")
    await asyncio.sleep(1)
    for _ in range(5):
        queue.add("a")
    await running

    assert diary.begun == [("a", 0), ("a", 3)]


async def test_keys_do_not_wait_for_each_other_while_a_worker_is_free():
    queue, diary = a_queue(), Diary(takes_seconds=5)
    for key in "abc":
        queue.add(key)
    await run_for(queue, diary.work, 20)

    assert diary.begun == [("a", 0), ("b", 0), ("c", 5)]


async def test_a_key_that_is_due_while_it_is_worked_on_does_not_keep_others_waiting():
    queue, diary = a_queue(), Diary(takes_seconds=5)
    running = asyncio.create_task(run_for(queue, diary.work, 20))
    queue.add("a")
    await asyncio.sleep(1)
    queue.add("a")
    queue.add("b")
    queue.add("c", after_seconds=2)
    await running

    assert diary.begun == [("a", 0), ("b", 1), ("c", 5), ("a", 6)]


async def test_a_cancelled_task_of_the_work_ends_no_worker_and_the_key_runs_again():
    queue, diary = a_queue(workers=1), Diary()
    parts: list[asyncio.Task[None]] = []

    async def work(key: str) -> None:
        if len(parts) < 3:
            parts.append(asyncio.create_task(asyncio.sleep(60)))
            asyncio.get_running_loop().call_later(1, parts[-1].cancel)
            await parts[-1]
        await diary.work(key)

    queue.add("a")
    await run_for(queue, work, 10)

    assert diary.begun == [("a", 3)]


async def test_an_idle_queue_wakes_up_for_a_new_key():
    queue, diary = a_queue(workers=3), Diary()
    running = asyncio.create_task(run_for(queue, diary.work, 20))
    await asyncio.sleep(7)
    queue.add("a")
    await running

    assert diary.begun == [("a", 7)]


async def test_a_sleeping_queue_wakes_up_for_an_earlier_time():
    queue, diary = a_queue(workers=1), Diary()
    queue.add("late", after_seconds=15)
    running = asyncio.create_task(run_for(queue, diary.work, 20))
    await asyncio.sleep(1)
    queue.add("soon", after_seconds=2)
    await running

    assert diary.begun == [("soon", 3), ("late", 15)]


async def test_depth_counts_what_is_due_and_waits():
    queue, diary = a_queue(workers=1), Diary(takes_seconds=5)
    for key in "abc":
        queue.add(key)
    queue.add("later", after_seconds=100)
    assert queue.depth() == 3
    running = asyncio.create_task(run_for(queue, diary.work, 20))
    await asyncio.sleep(1)
    assert queue.depth() == 2
    queue.add("a")
    assert queue.depth() == 2, "a key that is being worked on does not wait"
    await running
    assert queue.depth() == 0


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
        queue, diary = a_queue(workers=workers), Diary(takes_seconds=takes)
        running = asyncio.create_task(run_for(queue, diary.work, 500))
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
        queue, diary = a_queue(workers=3), Diary(takes_seconds=1)
        running = asyncio.create_task(run_for(queue, diary.work, 100))
        for at in sorted(times):
            await asyncio.sleep(max(at - (now() - START_SECONDS), 0))
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

    async def test_a_key_that_is_added_again_at_once_is_held_back(self):
        runs = await self.spin(a_queue(), 60)
        bound = RUNS_AT_ONCE + 60 * RUNS_PER_SECOND
        assert bound * 0.9 < len(runs["spins"]) <= bound + 1
        for n, at in enumerate(runs["spins"][:-RUNS_AT_ONCE]):
            within = sum(at <= t < at + 1 for t in runs["spins"][n:])
            assert within <= RUNS_AT_ONCE + RUNS_PER_SECOND + 1

    async def test_it_delays_no_other_key(self):
        runs = await self.spin(a_queue(), 60)
        gaps = [b - a for a, b in itertools.pairwise(runs["rests"])]
        assert len(gaps) > 50
        assert max(gaps) < 1.1

    async def test_after_a_rest_it_may_run_as_often_at_once_as_before(self):
        queue = a_queue()
        await self.spin(queue, 30)
        await asyncio.sleep(RUNS_AT_ONCE / RUNS_PER_SECOND)
        runs = await self.spin(queue, 0.9)
        assert len(runs["spins"]) >= RUNS_AT_ONCE

    async def test_it_is_logged_once(self, caplog):
        await self.spin(a_queue(), 60)
        assert [r.getMessage().partition(" ")[0] for r in caplog.records] == ["spins"]

    async def test_keys_that_rest_are_forgotten(self):
        queue, diary = a_queue(), Diary()
        for n in range(5 * RUNS_AT_ONCE):
            queue.add(f"key-{n}", after_seconds=float(n))
        await run_for(queue, diary.work, 5 * RUNS_AT_ONCE)
        assert len(queue._budgets) <= RUNS_AT_ONCE + 2


class TestTenants:
    """The keys of one tenant delay no other one."""

    @pytest.mark.parametrize("takes_seconds", [0.5, 5.0])
    async def test_a_key_of_another_tenant_begins_at_once(self, takes_seconds):
        queue, diary = a_queue(workers=16), Diary(takes_seconds=takes_seconds)
        for n in range(1500):
            queue.add(f"many/{n}")
        running = asyncio.create_task(run_for(queue, diary.work, 30))
        await asyncio.sleep(1)
        for n in range(3):
            queue.add(f"one/{n}")
        await running

        assert [t for k, t in diary.begun if k.startswith("one/")] == [1, 1, 1]
        assert len(diary.begun) > 12 * 29 / takes_seconds

    async def test_a_tenant_that_uses_the_loop_waits_for_its_share_and_the_others_do_not(self):
        shares = TimeShares()
        queue, begun = a_queue(workers=16, shares=shares), Counter[str]()

        async def work(key: str) -> None:
            begun[key] += 1
            shares.note(key, 0.05 if key == "busy" else 0.001, now())
            await asyncio.sleep(0.05)
            queue.add(key, after_seconds=0.001 if key == "busy" else 0.05)

        for key in ("busy", "quiet"):
            queue.add(key)
        await run_for(queue, work, 60)

        assert 0.4 < begun["busy"] * 0.05 / 60 < 0.6
        assert begun["quiet"] > 550

    async def test_the_time_of_a_run_counts_and_not_that_of_its_waits(self):
        shares = Mock(wait_seconds=Mock(return_value=0.0))
        queue = a_queue(shares=shares)

        async def work(_: str) -> None:
            await asyncio.sleep(5)
            began = time.thread_time()
            while time.thread_time() - began < 0.02:
                pass
            await asyncio.sleep(5)

        queue.add("rl/policy")
        await run_for(queue, work, 20)

        tenant, seconds, _ = shares.note.call_args.args
        assert tenant == "rl"
        assert 0.02 <= seconds < 5, "of ten seconds"


class TestDeadlines:
    """Keys with a deadline wait for no key without one."""

    async def test_they_begin_while_all_other_workers_are_taken(self):
        deadlines = {"rl/paused": 1000.0}
        queue = a_queue(workers=2, urgent_workers=1, deadlines=deadlines)
        diary = Diary(takes_seconds=50)
        for n in range(10):
            queue.add(f"t{n}/k")
        running = asyncio.create_task(run_for(queue, diary.work, 20))
        await asyncio.sleep(1)
        queue.add("rl/paused")
        await running

        assert ("rl/paused", 1) in diary.begun

    async def test_a_key_that_gets_a_deadline_while_it_waits_waits_no_longer(self):
        deadlines: dict[str, float] = {}
        queue = a_queue(workers=1, deadlines=deadlines)
        diary = Diary(takes_seconds=50)
        for key in ("t/k", "rl/policy"):
            queue.add(key)
        running = asyncio.create_task(run_for(queue, diary.work, 120))
        await asyncio.sleep(3)
        deadlines["rl/policy"] = 1000.0
        queue.add("rl/policy")
        await asyncio.sleep(1)
        del deadlines["rl/policy"]
        await running

        assert diary.begun == [("t/k", 0), ("rl/policy", 3)]

    async def test_the_first_deadline_of_a_tenant_comes_first(self):
        deadlines = {"rl/late": 90.0, "rl/soon": 30.0, "rl/later": 95.0}
        queue, diary = a_queue(deadlines=deadlines), Diary(takes_seconds=1)
        for key in deadlines:
            queue.add(key)
        await run_for(queue, diary.work, 20)

        assert [key for key, _ in diary.begun] == ["rl/soon", "rl/late", "rl/later"]

    async def test_deadlines_of_one_tenant_do_not_keep_those_of_another_waiting(self):
        deadlines = {f"many/{n}": 0.0 for n in range(1000)} | {"one/k": 1000.0}
        queue = a_queue(urgent_workers=8, deadlines=deadlines)
        diary = Diary(takes_seconds=1)
        for key in deadlines:
            queue.add(key)
        await run_for(queue, diary.work, 20)

        assert ("one/k", 0) in diary.begun

    async def test_they_do_not_wait_for_a_share_of_the_time(self):
        shares = TimeShares()
        shares.note("other", 1.0, START_SECONDS)
        shares.note("rl", 60.0, START_SECONDS)
        queue = a_queue(deadlines={"rl/paused": 1000.0}, shares=shares)
        diary = Diary()
        for key in ("rl/paused", "rl/policy"):
            queue.add(key)
        await run_for(queue, diary.work, 20)

        assert diary.begun[0] == ("rl/paused", 0)
        assert [k for k, t in diary.begun if t > 1] == ["rl/policy"]


async def test_a_queue_is_stuck_when_none_begins_not_when_a_tenant_waits_for_its_turn():
    queue, diary = a_queue(workers=1), Diary(takes_seconds=5)
    for n in range(100):
        queue.add(f"many/{n}")
    running = asyncio.create_task(run_for(queue, diary.work, 300))
    await asyncio.sleep(200)
    assert queue.depth() > 50
    assert queue.stuck_seconds() <= 5
    await running
    await asyncio.sleep(100)
    assert queue.stuck_seconds() >= 100
