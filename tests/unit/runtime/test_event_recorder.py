"""Events are posted once, at a bounded rate, and a failed post never fails a reconcile."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.counted_calls import operator_calls
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.events import NewEvent
from fleet_operator.errors import Retryable, Terminal, Unknown
from fleet_operator.runtime import event_recorder as recorder_module
from fleet_operator.runtime.event_recorder import (
    AGAIN_AFTER_SECONDS,
    BURST,
    MAX_WAITING,
    REPEAT_AFTER_SECONDS,
    EventPoster,
    EventRecorder,
    Subject,
)
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.problems import EVENTS, FleetProblems, Problems

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
POLICY = Subject(kind="WeightVersion", namespace="rl", name="policy", uid="u1", fleet="policy")
APPLIED = NewEvent(type="Normal", reason="WeightsApplied", message="version 2 on 4/4 workers")


class Setup:
    """A recorder and what it posted."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.kube = self.cluster.client()
        self.metrics = Metrics()
        self.problems = FleetProblems(KEY, Problems())
        self.poster = EventPoster(self.kube, self.metrics, instance="pod-1")
        self.recorder = EventRecorder(KEY, self.poster, self.problems)

    async def events(self) -> list[dict]:
        await self.poster.flush()
        return list(self.cluster.objects.values())


async def test_an_event_names_its_object_and_its_reporter():
    setup = Setup()
    setup.recorder.record(POLICY, APPLIED)
    (event,) = await setup.events()

    assert event["involvedObject"] == {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "WeightVersion",
        "namespace": "rl",
        "name": "policy",
        "uid": "u1",
    }
    assert event["metadata"]["namespace"] == "rl"
    assert event["metadata"]["name"].startswith("policy.")
    assert (event["type"], event["reason"]) == ("Normal", "WeightsApplied")
    assert event["message"] == "version 2 on 4/4 workers"
    assert (event["reportingComponent"], event["reportingInstance"]) == (
        "rlfleet-operator",
        "pod-1",
    )
    assert event["firstTimestamp"] == event["lastTimestamp"]


NAMESAKE = Subject(kind="WeightVersion", namespace="rl", name="policy", uid="u2", fleet="policy")
OTHER_MESSAGE = NewEvent(type="Normal", reason="WeightsApplied", message="version 3")
OTHER_REASON = NewEvent(type="Normal", reason="Recovered", message=APPLIED.message)
REPEATED = {
    "the same Event is posted once": (POLICY, APPLIED, 0, 1),
    "for a while": (POLICY, APPLIED, REPEAT_AFTER_SECONDS - 1, 1),
    "then once more": (POLICY, APPLIED, REPEAT_AFTER_SECONDS + 1, 2),
    "another message is another event": (POLICY, OTHER_MESSAGE, 0, 2),
    "another reason is another event": (POLICY, OTHER_REASON, 0, 2),
    "another object of the same name is another": (NAMESAKE, APPLIED, 0, 2),
}


@pytest.mark.parametrize(
    ("subject", "event", "after_seconds", "posted"), REPEATED.values(), ids=REPEATED
)
async def test_repetition(subject, event, after_seconds, posted):
    setup = Setup()
    setup.recorder.record(POLICY, APPLIED)
    await asyncio.sleep(after_seconds)
    setup.recorder.record(subject, event)
    assert len(await setup.events()) == posted


async def test_a_storm_of_events_is_cut_and_what_it_costs_comes_back_with_time():
    setup = Setup()
    for n in range(BURST + 20):
        event = NewEvent(type="Warning", reason="X", message=str(n))
        setup.recorder.record(POLICY, event)
    assert len(await setup.events()) == BURST
    await asyncio.sleep(10)
    for n in range(20):
        event = NewEvent(type="Warning", reason="Y", message=str(n))
        setup.recorder.record(POLICY, event)
    allowed = BURST + 10 * recorder_module.REFILL_PER_SECOND
    assert len(await setup.events()) == allowed


async def test_a_storm_about_one_object_does_not_silence_the_others():
    setup = Setup()
    for n in range(BURST + 20):
        event = NewEvent(type="Warning", reason="X", message=str(n))
        setup.recorder.record(POLICY, event)
    other = Subject(kind="WeightVersion", namespace="rl", name="other", uid="u9", fleet="policy")
    setup.recorder.record(other, APPLIED)
    events = await setup.events()
    assert [e["involvedObject"]["name"] for e in events].count("other") == 1


async def test_memory_of_many_objects_is_freed_again():
    setup = Setup()
    for n in range(500):
        subject = Subject(
            kind="WeightVersion", namespace="rl", name=f"w{n}", uid=f"u{n}", fleet="policy"
        )
        setup.recorder.record(subject, APPLIED)
    await asyncio.sleep(3600)
    setup.recorder.record(POLICY, APPLIED)
    assert len(await setup.events()) == 501
    assert len(setup.recorder._posted_at) == 1
    assert len(setup.recorder._budgets) == 1


async def test_events_of_twice_as_many_objects_cost_twice_as_much():
    async def cost_of(number: int) -> int:
        setup = Setup()
        with operator_calls() as calls:
            for n in range(number):
                subject = Subject(
                    kind="WeightVersion", namespace="rl", name=f"w{n}", uid=f"u{n}", fleet="policy"
                )
                setup.recorder.record(subject, APPLIED)
            assert len(await setup.events()) == number
        return calls[0]

    assert await cost_of(400) < 2.2 * await cost_of(200)


async def test_a_long_message_is_cut():
    setup = Setup()
    setup.recorder.record(POLICY, NewEvent(type="Warning", reason="X", message="x" * 5000))
    (event,) = await setup.events()
    assert len(event["message"]) == 1024


@pytest.mark.parametrize("error", [Terminal("403"), Unknown("no answer")], ids=["403", "unknown"])
def test_an_event_that_is_lost_does_not_count_as_an_error(error, caplog):
    async def story() -> None:
        setup = Setup()
        setup.kube.error = error
        setup.recorder.record(POLICY, APPLIED)
        assert await setup.events() == []

    with caplog.at_level(logging.WARNING):
        virtual_time.run(story())
    assert "could not be posted" in caplog.text


@pytest.mark.parametrize("error", [Retryable("503"), Unknown("no answer")], ids=str)
async def test_a_refused_event_is_posted_again_after_a_try_that_failed_for_a_moment(error):
    setup = Setup()
    setup.kube.error = Terminal("403")
    setup.recorder.record(POLICY, APPLIED)
    for outcome in (error, None):
        assert await setup.events() == []
        assert setup.problems.has(EVENTS)
        await asyncio.sleep(AGAIN_AFTER_SECONDS)
        setup.kube.error = outcome
        setup.recorder.post_waiting()
    assert [e["reason"] for e in await setup.events()] == ["WeightsApplied"]
    assert not setup.problems.has(EVENTS)


async def posted_after_a_failure(setup: Setup, *events: NewEvent) -> list[str]:
    """The reasons that the API server has once it works again."""
    for event in events:
        setup.recorder.record(POLICY, event)
        await setup.poster.flush()
    setup.kube.error, setup.kube.answers_lost = None, False
    for _ in events:
        await asyncio.sleep(AGAIN_AFTER_SECONDS)
        setup.recorder.post_waiting()
        await setup.poster.flush()
    return [e["reason"] for e in await setup.events()]


@pytest.mark.parametrize("error", [Retryable("503"), Unknown("no answer")], ids=str)
async def test_every_event_that_could_not_be_posted_is_posted_once_it_can(error):
    setup = Setup()
    setup.kube.error = error
    warnings = [NewEvent(type="Warning", reason=r, message="words") for r in ("A", "B", "C")]
    assert sorted(await posted_after_a_failure(setup, *warnings)) == ["A", "B", "C"]
    assert not setup.problems.has(EVENTS)


async def test_an_event_whose_answer_was_lost_is_not_posted_twice():
    setup = Setup()
    setup.kube.answers_lost = True
    assert await posted_after_a_failure(setup, APPLIED) == ["WeightsApplied"]


async def test_an_event_counts_as_posted_only_from_when_it_was():
    setup = Setup()
    setup.kube.error = Retryable("503")
    setup.recorder.record(POLICY, APPLIED)
    await setup.poster.flush()
    setup.kube.error = None
    for _ in range(2):
        setup.recorder.record(POLICY, APPLIED)
        assert len(await setup.events()) == 1


async def test_one_event_that_is_always_refused_does_not_hold_up_the_others():
    setup = Setup()
    create = setup.kube.create

    async def refusing(path: str, body: dict) -> dict:
        if body["reason"] == "Bad":
            raise Terminal("422")
        return await create(path, body)

    setup.kube.create = refusing
    bad = NewEvent(type="Warning", reason="Bad", message="words")
    assert await posted_after_a_failure(setup, bad, APPLIED) == ["WeightsApplied"]


async def test_while_the_api_server_refuses_events_one_request_is_sent_at_a_time_and_few_wait():
    setup = Setup()
    setup.kube.error = Terminal("403")
    for n in range(2 * MAX_WAITING):
        setup.recorder.record(dataclasses.replace(POLICY, uid=str(n)), APPLIED)
    await setup.poster.flush()
    before = len(setup.kube.requests)
    await asyncio.sleep(AGAIN_AFTER_SECONDS)
    setup.recorder.post_waiting()
    await setup.poster.flush()
    assert len(setup.kube.requests) - before == 1
    setup.kube.error = None
    await asyncio.sleep(AGAIN_AFTER_SECONDS)
    setup.recorder.post_waiting()
    assert len(await setup.events()) == MAX_WAITING


@pytest.mark.parametrize(("hours", "posted"), [(0.5, 1), (1.5, 0)])
async def test_a_sweep_posts_what_waits_of_a_fleet_without_reconciles_for_an_hour(hours, posted):
    setup = Setup()
    setup.kube.error = Retryable("503")
    setup.recorder.record(POLICY, APPLIED)
    await setup.poster.flush()
    await asyncio.sleep(3600 * hours)
    for error in (Retryable("503"), None):
        setup.kube.error = error
        setup.recorder.post_waiting()
        await setup.poster.flush()
        await asyncio.sleep(AGAIN_AFTER_SECONDS)
    assert len(await setup.events()) == posted
    assert not setup.problems.has(EVENTS)


@pytest.mark.parametrize(
    ("kind", "level"), [("Normal", logging.INFO), ("Warning", logging.WARNING)]
)
def test_an_event_is_logged_too(kind, level, caplog):
    async def story() -> None:
        setup = Setup()
        setup.recorder.record(POLICY, NewEvent(type=kind, reason="Why", message="words"))
        await setup.events()

    with caplog.at_level(logging.INFO):
        virtual_time.run(story())
    (record,) = [r for r in caplog.records if "Why" in r.getMessage()]
    assert (record.levelno, record.getMessage()) == (level, "WeightVersion rl/policy: Why: words")


async def test_events_count_as_writes():
    setup = Setup()
    setup.recorder.record(POLICY, APPLIED)
    await setup.events()
    assert b'rlfleet_api_writes_total{kind="event"} 1.0' in setup.metrics.render()


RECORDED = st.tuples(
    st.sampled_from([0.0, 0.0, 0.5, 3.0, REPEAT_AFTER_SECONDS]),
    st.sampled_from(["policy", "other"]),
    st.integers(0, 60),
)


@settings(max_examples=40)
@given(st.lists(RECORDED, max_size=120))
@example([(0.0, "policy", n) for n in range(60)] * 2)
def test_no_event_is_posted_twice_at_once_and_their_rate_is_bounded(recorded):
    async def story() -> None:
        setup = Setup()
        asked: dict[tuple[str, int], list[float]] = {}
        posted: dict[str, list[float]] = {"policy": [], "other": []}
        for pause, name, number in recorded:
            await asyncio.sleep(pause)
            before = len(await setup.events())
            subject = Subject(
                kind="WeightVersion", namespace="rl", name=name, uid=name, fleet="policy"
            )
            event = NewEvent(type="Warning", reason="X", message=str(number))
            setup.recorder.record(subject, event)
            events = await setup.events()
            if len(events) == before:
                continue
            newest = events[-1]
            assert newest["message"] == str(number)
            assert newest["involvedObject"]["name"] == name
            posted[name].append(virtual_time.now())
            asked.setdefault((name, number), []).append(virtual_time.now())
        for times in asked.values():
            gaps = [b - a for a, b in itertools.pairwise(times)]
            assert all(gap >= REPEAT_AFTER_SECONDS for gap in gaps)
        for times in posted.values():
            for first, last in itertools.combinations(range(len(times)), 2):
                seconds = times[last] - times[first]
                allowed = BURST + seconds * recorder_module.REFILL_PER_SECOND
                assert last - first + 1 <= allowed + 0.001

    virtual_time.run(story())


@pytest.mark.parametrize("name", ["policy", "other"])
async def test_a_rare_new_event_is_always_posted_at(name):
    setup = Setup()
    subject = Subject(kind="WeightVersion", namespace="rl", name=name, uid=name, fleet="policy")
    for number in range(100):
        event = NewEvent(type="Normal", reason="X", message=str(number))
        setup.recorder.record(subject, event)
        await asyncio.sleep(1 / recorder_module.REFILL_PER_SECOND)
    assert [e["message"] for e in await setup.events()] == [str(n) for n in range(100)]


async def test_an_event_that_was_not_posted_for_want_of_budget_is_not_taken_for_posted_at():
    setup = Setup()
    for number in range(BURST + 1):
        event = NewEvent(type="Warning", reason="X", message=str(number))
        setup.recorder.record(POLICY, event)
    last = NewEvent(type="Warning", reason="X", message=str(BURST))
    assert str(BURST) not in [e["message"] for e in await setup.events()]
    await asyncio.sleep(1 / recorder_module.REFILL_PER_SECOND)
    setup.recorder.record(POLICY, last)
    assert str(BURST) in [e["message"] for e in await setup.events()]


async def test_flushing_waits_for_what_is_on_its_way_and_is_not_stopped_by_a_failure():
    setup = Setup()
    setup.kube.delay_seconds = 3
    setup.recorder.record(POLICY, APPLIED)
    began = virtual_time.now()
    assert len(await setup.events()) == 1
    assert virtual_time.now() - began == 3
    setup.kube.error = Unknown("no answer")
    other = NewEvent(type="Normal", reason="Y", message="y")
    setup.recorder.record(POLICY, other)
    assert len(await setup.events()) == 1
