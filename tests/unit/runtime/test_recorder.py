"""Events: said once, not too many, and never an error."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.transitions import Transition
from fleet_operator.errors import Terminal, Unknown
from fleet_operator.runtime import recorder as recorder_module
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.recorder import BURST, REPEAT_AFTER_SECONDS, Recorder, Subject

POLICY = Subject(kind="WeightVersion", namespace="rl", name="policy", uid="u1")
APPLIED = Transition(type="Normal", reason="WeightsApplied", message="version 2 on 4/4 workers")


class Told:
    """A recorder and what it posted."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.kube = self.cluster.client()
        self.metrics = Metrics()
        self.recorder = Recorder(self.kube, self.metrics, instance="pod-1")

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
            (Subject(kind="WeightVersion", namespace="rl", name="policy", uid="u2"), APPLIED),
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
        other = Subject(kind="WeightVersion", namespace="rl", name="other", uid="u9")
        told.recorder.record(other, APPLIED)
        events = await told.events()
        assert [e["involvedObject"]["name"] for e in events].count("other") == 1

    virtual_time.run(story())


def test_what_is_remembered_of_many_objects_is_forgotten_again():
    async def story() -> None:
        told = Told()
        for n in range(500):
            subject = Subject(kind="WeightVersion", namespace="rl", name=f"w{n}", uid=f"u{n}")
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
