"""Obstacles to a rollout end the wait of its publisher, over a fake API server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_objects import FakeObjects, condition

from rlfleet import Refused, TimedOut, Unavailable
from rlfleet.rollout import ABSENT_SECONDS

SEEN = "/weights/none does not exist yet; workers see /weights: base, step_1"


def report(objects: FakeObjects, reason: str, **more: Any) -> None:
    """The operator reports that the version does not begin."""
    generation = objects.weights["metadata"]["generation"]
    ready = condition("Ready", reason, generation, status="False", message=SEEN)
    phase = {"Suspended": "Suspended"}.get(reason, "Pending")
    objects.look(phase, ready, condition("Progressing", reason, generation), **more)


def fleet(reason: str) -> FakeObjects:
    """A fleet whose next version does not begin."""
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: report(objects, reason))
    return objects


def write_on(objects: FakeObjects, count: int, reason: str = "WaitingForCheckpoint") -> None:
    """The operator writes its status repeatedly, three seconds apart."""
    for number in range(count):

        def again(number: int = number) -> None:
            objects.now += 3
            report(objects, reason, supersededVersions=number)

        objects.script.append(again)


@pytest.mark.parametrize("method", ["publish", "rollback"])
@pytest.mark.parametrize(
    ("reason", "seconds"),
    [("WaitingForCheckpoint", ABSENT_SECONDS), ("NoWorkers", 0), ("Suspended", 0)],
)
def test_a_version_that_cannot_begin_is_refused_and_stays_desired(call, method, reason, seconds):
    objects = fleet(reason)
    before = objects.now

    with pytest.raises(Refused) as refused:
        call(objects, method, "41" if method == "rollback" else "43", timeout_seconds=600)

    assert refused.value.reason == reason
    assert SEEN in refused.value.message
    for named in ("stays desired", "undo", "wait"):
        assert named in refused.value.message
    assert objects.now - before == pytest.approx(seconds)
    assert objects.weights["spec"]["version"] == refused.value.version


def test_absent_files_are_refused_although_the_operator_writes_its_status(call):
    objects = fleet("WaitingForCheckpoint")
    write_on(objects, 30)
    before = objects.now

    with pytest.raises(Refused, match="WaitingForCheckpoint"):
        call(objects, "publish", "43")
    assert ABSENT_SECONDS <= objects.now - before <= ABSENT_SECONDS + 3


def test_files_that_come_in_time_are_loaded(call):
    objects = fleet("WaitingForCheckpoint")
    write_on(objects, 2)
    objects.script.extend([lambda: objects.look("Staging"), objects.apply])

    assert call(objects, "publish", "43").applied


def test_the_time_without_files_begins_again_when_they_were_there(call):
    objects = fleet("WaitingForCheckpoint")
    write_on(objects, 2)
    objects.script.append(lambda: objects.look("Staging"))
    write_on(objects, 3)
    objects.script.append(objects.apply)

    assert call(objects, "publish", "43").applied


def test_a_last_look_decides_after_the_time_without_files(call, monkeypatch):
    """A watch may have hidden the end."""
    objects = fleet("WaitingForCheckpoint")
    real = objects.get

    async def get(*arguments: Any) -> Any:
        if objects.now > 1000:
            objects.apply()
        return await real(*arguments)

    monkeypatch.setattr(objects, "get", get)

    assert call(objects, "publish", "43").applied


def test_the_client_asks_an_api_server_that_is_away_at_that_moment_until_the_timeout(call):
    objects = fleet("WaitingForCheckpoint")
    before = objects.now

    def away() -> None:
        objects.now += ABSENT_SECONDS
        objects.failures.extend([Unavailable("away")] * 3)
        raise Unavailable("away")

    objects.script.append(away)

    with pytest.raises(Refused, match="WaitingForCheckpoint"):
        call(objects, "publish", "43", timeout_seconds=600)
    assert ABSENT_SECONDS < objects.now - before < 2 * ABSENT_SECONDS


def test_a_shorter_timeout_reports_absent_files_too(call):
    with pytest.raises(Refused, match="WaitingForCheckpoint"):
        call(fleet("WaitingForCheckpoint"), "publish", "43", timeout_seconds=4)


def test_files_may_be_waited_for(call):
    objects = fleet("WaitingForCheckpoint")
    before = objects.now

    with pytest.raises(TimedOut):
        call(objects, "publish", "43", wait_for_files=True, timeout_seconds=60)
    assert objects.now - before == pytest.approx(60)
    with pytest.raises(Refused, match="NoWorkers"):
        call(fleet("NoWorkers"), "publish", "43", wait_for_files=True)


@pytest.mark.parametrize("reason", ["WaitingForCheckpoint", "NoWorkers", "Suspended"])
@pytest.mark.parametrize("method", ["wait", "retry"])
def test_others_wait_until_the_timeout(call, method, reason):
    objects = fleet(reason)
    call(objects, "publish", "43", wait=False)

    with pytest.raises(TimedOut):
        call(objects, method, timeout_seconds=60)


def test_a_rollout_that_was_published_without_waiting_is_waited_for_by_its_publisher(call):
    objects = fleet("WaitingForCheckpoint")
    rollout = call(objects, "publish", "43", wait=False)

    with pytest.raises(Refused, match="WaitingForCheckpoint"):
        call(objects, "wait", rollout)
    with pytest.raises(TimedOut):
        call(objects, "wait", rollout, wait_for_files=True, timeout_seconds=60)
    objects.desire(version="44")
    objects.apply()
    assert call(objects, "wait").version == "44"


def test_an_obstacle_of_the_version_before_is_not_one_of_this(call):
    objects = FakeObjects(obeys=False)
    objects.desire(version="43")
    report(objects, "WaitingForCheckpoint")
    objects.script.append(objects.apply)

    assert call(objects, "publish", "44").applied


# --- what changed nothing -------------------------------------------------------------------------


def test_a_version_that_changed_nothing_says_so(call):
    objects = FakeObjects(obeys=False)
    same = condition("WeightsUnchanged", "SameFiles", 2, message="42 has the same digest")
    objects.script.append(lambda: objects.apply(conditions=[same]))

    assert call(objects, "publish", "43").unchanged == "42 has the same digest"
    assert call(objects, "metrics")["rlfleet/unchanged"] == 1
    assert call(objects, "publish", "44", wait=False).unchanged == ""


def test_a_version_with_remarks_says_them(call):
    objects = FakeObjects(obeys=False)
    said = condition("Remarks", "IgnoredOrCast", 2, message="the end tokens are ignored")
    objects.script.append(lambda: objects.apply(conditions=[said]))

    assert call(objects, "publish", "43").remarks == "the end tokens are ignored"
    assert call(objects, "publish", "44", wait=False).remarks == ""


def test_a_condition_that_is_not_true_reports_nothing(call):
    objects = FakeObjects(obeys=False)
    denied = condition("WeightsUnchanged", "Changed", 2, status="False")
    objects.script.append(lambda: objects.apply(conditions=[denied]))

    assert call(objects, "publish", "43").unchanged == ""
    assert call(objects, "metrics")["rlfleet/unchanged"] == 0
