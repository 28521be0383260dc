"""Events: said once, not too many, and never an error."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.transitions import Transition
from fleet_operator.errors import Terminal, Unknown
from fleet_operator.runtime import recorder as recorder_module
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.recorder import BURST, REPEAT_AFTER_SECONDS, Recorder, Subject
from fleet_operator.runtime.troubles import Troubles

POLICY = Subject(kind="WeightVersion", namespace="rl", name="policy", uid="u1", fleet="policy")
APPLIED = Transition(type="Normal", reason="WeightsApplied", message="version 2 on 4/4 workers")


class Told:
    """A recorder and what it posted."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.kube = self.cluster.client()
        self.metrics = Metrics()
        self.troubles = Troubles()
        self.recorder = Recorder(self.kube, self.metrics, self.troubles, instance="pod-1")

    async def events(self) -> list[dict]:
        await self.recorder.flush()
        return list(self.cluster.objects.values())


def test_an_event_tells_about_what_and_by_whom():
    async def story() -> None:
        told = Told()
        told.recorder.record(POLICY, APPLIED)
        (event,) = await told.events()

        assert event["involvedObject"] == {
            "apiVersion": "rlfleet.dev/v1alpha1",
            "kind": "WeightVersion",
            "namespace": "rl",
            "name": "policy",
            "uid": "u1",
        }
        assert event["metadata"]["namespace"] == "rl"
        assert event["metadata"]["generateName"] == "policy."
        assert (event["type"], event["reason"]) == ("Normal", "WeightsApplied")
        assert event["message"] == "version 2 on 4/4 workers"
        assert (event["reportingComponent"], event["reportingInstance"]) == (
            "rlfleet-operator",
            "pod-1",
        )
        assert event["firstTimestamp"] == event["lastTimestamp"]

    virtual_time.run(story())


@pytest.mark.parametrize(
    ("second", "after_seconds", "posted"),
    [
        pytest.param((POLICY, APPLIED), 0, 1, id="the same is said once"),
        pytest.param((POLICY, APPLIED), REPEAT_AFTER_SECONDS - 1, 1, id="for a while"),
        pytest.param((POLICY, APPLIED), REPEAT_AFTER_SECONDS + 1, 2, id="then once more"),
        pytest.param(
            (POLICY, Transition(type="Normal", reason="WeightsApplied", message="version 3")),
            0,
            2,
            id="another message is another event",
        ),
        pytest.param(
            (POLICY, Transition(type="Normal", reason="Recovered", message=APPLIED.message)),
            0,
            2,
            id="another reason is another event",
        ),
        pytest.param(
            (
                Subject(
                    kind="WeightVersion", namespace="rl", name="policy", uid="u2", fleet="policy"
                ),
                APPLIED,
            ),
            0,
            2,
            id="another object of the same name is another",
        ),
    ],
)
def test_repetition(second, after_seconds, posted):
    async def story() -> None:
        told = Told()
        told.recorder.record(POLICY, APPLIED)
        await asyncio.sleep(after_seconds)
        told.recorder.record(*second)
        assert len(await told.events()) == posted

    virtual_time.run(story())


def test_a_storm_of_events_is_cut_and_what_it_costs_comes_back_with_time():
    async def story() -> None:
        told = Told()
        for n in range(BURST + 20):
            transition = Transition(type="Warning", reason="X", message=str(n))
            told.recorder.record(POLICY, transition)
        assert len(await told.events()) == BURST
        await asyncio.sleep(10)
        for n in range(20):
            transition = Transition(type="Warning", reason="Y", message=str(n))
            told.recorder.record(POLICY, transition)
        allowed = BURST + 10 * recorder_module.REFILL_PER_SECOND
        assert len(await told.events()) == allowed

    virtual_time.run(story())


def test_a_storm_about_one_object_does_not_silence_the_others():
    async def story() -> None:
        told = Told()
        for n in range(BURST + 20):
            transition = Transition(type="Warning", reason="X", message=str(n))
            told.recorder.record(POLICY, transition)
        other = Subject(
            kind="WeightVersion", namespace="rl", name="other", uid="u9", fleet="policy"
        )
        told.recorder.record(other, APPLIED)
        events = await told.events()
        assert [e["involvedObject"]["name"] for e in events].count("other") == 1

    virtual_time.run(story())


def test_what_is_remembered_of_many_objects_is_forgotten_again():
    async def story() -> None:
        told = Told()
        for n in range(500):
            subject = Subject(
                kind="WeightVersion", namespace="rl", name=f"w{n}", uid=f"u{n}", fleet="policy"
            )
            told.recorder.record(subject, APPLIED)
        await asyncio.sleep(3600)
        told.recorder.record(POLICY, APPLIED)
        assert len(told.recorder._said) == 1
        assert len(told.recorder._budgets) == 1

    virtual_time.run(story())


def test_a_long_message_is_cut():
    async def story() -> None:
        told = Told()
        told.recorder.record(POLICY, Transition(type="Warning", reason="X", message="x" * 5000))
        (event,) = await told.events()
        assert len(event["message"]) == 1024

    virtual_time.run(story())


@pytest.mark.parametrize("error", [Terminal("403"), Unknown("no answer")], ids=["403", "unknown"])
def test_an_event_that_is_lost_is_no_error(error, caplog):
    async def story() -> None:
        told = Told()
        told.kube.error = error
        told.recorder.record(POLICY, APPLIED)
        assert await told.events() == []

    with caplog.at_level(logging.WARNING):
        virtual_time.run(story())
    assert "an event could not be posted" in caplog.text


@pytest.mark.parametrize(
    ("kind", "level"), [("Normal", logging.INFO), ("Warning", logging.WARNING)]
)
def test_what_is_said_stands_in_the_log_too(kind, level, caplog):
    async def story() -> None:
        told = Told()
        told.recorder.record(POLICY, Transition(type=kind, reason="Why", message="words"))
        await told.events()

    with caplog.at_level(logging.INFO):
        virtual_time.run(story())
    (record,) = [r for r in caplog.records if "Why" in r.getMessage()]
    assert (record.levelno, record.getMessage()) == (level, "WeightVersion rl/policy: Why: words")


def test_events_count_as_writes():
    async def story() -> None:
        told = Told()
        told.recorder.record(POLICY, APPLIED)
        await told.events()
        assert b'rlfleet_api_writes_total{kind="event"} 1.0' in told.metrics.render()

    virtual_time.run(story())


SAID = st.tuples(
    st.sampled_from([0.0, 0.0, 0.5, 3.0, REPEAT_AFTER_SECONDS]),
    st.sampled_from(["policy", "other"]),
    st.integers(0, 60),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(SAID, max_size=120))
@example([(0.0, "policy", n) for n in range(60)] * 2)
def test_whatever_happens_nothing_is_said_twice_at_once_and_nobody_is_flooded(said):
    async def story() -> None:
        told = Told()
        asked: dict[tuple[str, int], list[float]] = {}
        posted: dict[str, list[float]] = {"policy": [], "other": []}
        for pause, name, number in said:
            await asyncio.sleep(pause)
            before = len(await told.events())
            subject = Subject(
                kind="WeightVersion", namespace="rl", name=name, uid=name, fleet="policy"
            )
            transition = Transition(type="Warning", reason="X", message=str(number))
            told.recorder.record(subject, transition)
            events = await told.events()
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
def test_what_is_new_and_rare_is_always_said(name):
    async def story() -> None:
        told = Told()
        subject = Subject(kind="WeightVersion", namespace="rl", name=name, uid=name, fleet="policy")
        for number in range(100):
            transition = Transition(type="Normal", reason="X", message=str(number))
            told.recorder.record(subject, transition)
            await asyncio.sleep(1 / recorder_module.REFILL_PER_SECOND)
        assert [e["message"] for e in await told.events()] == [str(n) for n in range(100)]

    virtual_time.run(story())


def test_an_event_that_was_not_posted_for_want_of_budget_is_not_taken_for_said():
    async def story() -> None:
        told = Told()
        for number in range(BURST + 1):
            transition = Transition(type="Warning", reason="X", message=str(number))
            told.recorder.record(POLICY, transition)
        last = Transition(type="Warning", reason="X", message=str(BURST))
        assert str(BURST) not in [e["message"] for e in await told.events()]
        await asyncio.sleep(1 / recorder_module.REFILL_PER_SECOND)
        told.recorder.record(POLICY, last)
        assert str(BURST) in [e["message"] for e in await told.events()]

    virtual_time.run(story())


def test_flushing_waits_for_what_is_on_its_way_and_is_not_stopped_by_a_failure():
    async def story() -> None:
        told = Told()
        told.kube.delay_seconds = 3
        told.recorder.record(POLICY, APPLIED)
        began = virtual_time.now()
        assert len(await told.events()) == 1
        assert virtual_time.now() - began == 3
        told.kube.error = Unknown("no answer")
        other = Transition(type="Normal", reason="Y", message="y")
        told.recorder.record(POLICY, other)
        assert len(await told.events()) == 1

    virtual_time.run(story())
