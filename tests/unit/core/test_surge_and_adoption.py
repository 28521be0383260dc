"""Template changes with spare workers, pods without an owner, and used budgets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.builders import FLEET_UID, NOW, WorkerBuilder, make_fleet, make_worker, texts_of

from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.pod_actions import AdoptPod, BeginDrain
from fleet_operator.core.pod_waits import Awaited, PodWait
from rlfleet_resources.fleet_status import FleetStatus, RecycledWorker

IMAGE = "rlfleet/worker:1"
TODAY = plan_fleet(make_fleet(), default_image=IMAGE, holds_requests=False, now=NOW).revision


ONE_MORE = {"maxUnavailable": 0, "maxSurge": 1}


def plan(*workers: WorkerBuilder, status: FleetStatus | None = None, **spec: object) -> FleetPlan:
    fleet = make_fleet(*workers, status=status, **spec)
    return plan_fleet(fleet, default_image=IMAGE, holds_requests=False, now=NOW)


def up(ordinal: int) -> WorkerBuilder:
    return make_worker(ordinal).serving("1").of_revision(TODAY)


def old(ordinal: int) -> WorkerBuilder:
    return up(ordinal).of_revision("old")


def coming(ordinal: int) -> WorkerBuilder:
    return up(ordinal).joining("1")


OLD = [old(0), old(1), old(2)]
STEPS = {
    "first one worker is created and none deleted": (OLD, 1, ["CreatePod policy-3"]),
    "as many more as may be there": (OLD, 2, ["CreatePod policy-3", "CreatePod policy-4"]),
    "no more than are out of date": ([up(0), up(1), old(2)], 2, ["CreatePod policy-3"]),
    "no worker is deleted before the surplus one serves": ([*OLD, coming(3)], 1, []),
    "once it serves one worker is deleted": ([*OLD, up(3)], 1, ["BeginDrain policy-0"]),
    "the next one waits for its replacement": ([coming(0), old(1), old(2), up(3)], 1, []),
    "without out-of-date workers there is no surplus": (
        [up(0), coming(1), coming(2), up(3)],
        1,
        ["DeletePod policy-2"],
    ),
    "an admitted one before its probe is missing": ([up(0), up(1), up(2).unready(), old(3)], 1, []),
    "so is a paused one": ([up(0), up(1).paused("1"), up(2), old(3)], 1, []),
    "then one worker is deleted": ([up(0), up(1), up(2), up(3)], 1, ["BeginDrain policy-3"]),
    "a failed worker does not count as serving": (
        [old(0), old(1), old(2).quarantined(), up(3)],
        1,
        ["DeletePod policy-2"],
    ),
    "more than may be spare were scaled away": (
        [coming(0), up(1), up(2), up(3), up(4)],
        1,
        ["BeginDrain policy-4", "DeletePod policy-0"],
    ),
}


@pytest.mark.parametrize(("workers", "surge", "done"), STEPS.values(), ids=STEPS)
def test_a_template_change_with_surge(workers, surge, done):
    made = plan(*workers, replicas=3, update={"maxUnavailable": 0, "maxSurge": surge})

    assert texts_of(made.actions) == done


HELD = [{"paused": True}, {"type": "OnDelete"}]


@pytest.mark.parametrize("held", HELD, ids=str)
@pytest.mark.parametrize("management", ["Operator", "External"])
def test_a_held_update_keeps_no_surplus_worker(held, management):
    weights = {"roots": ["/weights"], "management": management}
    made = plan(old(0), old(1), old(2), replicas=2, update=ONE_MORE | held, weights=weights)
    (action,) = made.actions

    assert texts_of([action]) == ["BeginDrain policy-2"]
    assert isinstance(action, BeginDrain)
    assert action.reason == "the fleet has 2 replicas now"


EXTERNAL = {"roots": ["/weights"], "management": "External"}


def of_external(*workers: WorkerBuilder) -> list[WorkerBuilder]:
    """These workers, those with the current template with that of an External fleet."""
    template = make_fleet(weights=EXTERNAL).template
    assert template is not None
    current = {TODAY: template.revision}
    return [w.of_revision(current.get(w.pod["revision"], w.pod["revision"])) for w in workers]


def gated(ordinal: int) -> WorkerBuilder:
    wait = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")
    return make_worker(ordinal).of_revision(TODAY).not_running().awaiting(wait)


def test_without_an_update_a_gated_pod_makes_no_worker_surplus():
    made = plan(up(0), up(1), gated(2), gated(3), replicas=3, update=ONE_MORE)

    assert texts_of(made.actions) == ["DeletePod policy-3"]


def test_a_gated_pod_is_deleted_before_a_starting_one():
    made = plan(up(0), gated(1), coming(2), replicas=2)

    assert texts_of(made.actions) == ["DeletePod policy-1"]


def test_an_external_fleet_keeps_one_surplus_worker_for_each_missing_one():
    workers = of_external(up(0), up(1), gated(2), up(3), up(4))
    made = plan(*workers, replicas=3, update={"maxSurge": "100%"}, weights=EXTERNAL)

    assert texts_of(made.actions) == ["BeginDrain policy-4"]


def test_the_surplus_worker_of_an_external_fleet_stays_until_the_last_replacement_serves():
    workers = of_external(up(0), coming(1), up(2))
    made = plan(*workers, replicas=2, update=ONE_MORE, weights=EXTERNAL)

    assert made.actions == ()


def test_workers_beyond_the_replicas_do_not_count_as_serving():
    workers = [old(0), old(1), old(2), up(3)]
    made = plan(*workers, replicas=2, update={"maxUnavailable": 1})

    assert texts_of(made.actions) == [
        "BeginDrain policy-0",
        "BeginDrain policy-1",
        "BeginDrain policy-2",
    ]


def test_a_failed_surplus_worker_is_recreated():
    made = plan(old(0), old(1), up(2).ended(), replicas=2, update=ONE_MORE)

    assert texts_of(made.actions) == ["DeletePod policy-2"]
    assert [r.pod for r in made.recycled] == ["policy-2"]


def test_a_surplus_worker_of_a_template_that_never_came_up_is_replaced():
    never_up = coming(2).of_revision("broken")
    made = plan(old(0), old(1), never_up, replicas=2, update=ONE_MORE)

    assert texts_of(made.actions) == ["DeletePod policy-2"]


def test_a_serving_surplus_worker_substitutes_with_any_template():
    made = plan(old(0), coming(1), old(2), replicas=2, update=ONE_MORE)

    assert made.actions == ()


def test_a_failed_surplus_worker_that_is_not_needed_is_deleted():
    made = plan(up(0), up(1), up(2).quarantined(), replicas=2, update={"maxSurge": 1})

    assert texts_of(made.actions) == ["DeletePod policy-2"]
    assert made.recycled == ()


class TestAdoption:
    def test_an_orphaned_pod_with_the_fleets_labels_is_adopted(self):
        (action,) = plan(up(0).owned_by("")).actions

        assert isinstance(action, AdoptPod)
        assert action.pod_uid == "uid-0"
        assert action.owner["uid"] == FLEET_UID
        assert action.owner["controller"] is True

    def test_a_terminating_orphaned_pod_is_not_adopted(self):
        assert plan(up(0).owned_by("").going()).actions == ()

    def test_an_adopted_pod_is_treated_as_the_others(self):
        made = plan(up(0), up(1).owned_by(""), replicas=1)

        assert texts_of(made.actions) == ["AdoptPod policy-1", "BeginDrain policy-1"]


class TestRecycling:
    LATELY = NOW - timedelta(seconds=4)

    def status(self, count: int) -> FleetStatus:
        entry = RecycledWorker(pod="policy-0", uid="before", count=count, last_at=self.LATELY)
        return FleetStatus(recycled=(entry,))

    def test_a_worker_that_fails_again_waits_for_its_delay(self):
        made = plan(up(0).quarantined(), up(1), status=self.status(1))

        assert made.actions == ()
        assert made.requeue_after_seconds == pytest.approx(6)
        assert made.exhausted == ""

    def test_a_waiting_worker_is_not_replaced_for_its_template(self):
        made = plan(
            old(0).quarantined(), up(1), status=self.status(1), update={"maxUnavailable": 2}
        )

        assert made.actions == ()

    def test_a_waiting_worker_beyond_the_replicas_is_deleted_at_once(self):
        made = plan(up(0), up(1).quarantined(), replicas=1, status=self.status(5))

        assert texts_of(made.actions) == ["DeletePod policy-1"]
        assert made.exhausted == ""

    def test_the_recreated_workers_are_passed_to_the_status(self):
        (entry,) = plan(up(0).quarantined()).recycled

        assert (entry.pod, entry.count, entry.last_at) == ("policy-0", 1, NOW)
