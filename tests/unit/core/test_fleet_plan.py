"""Which pods a fleet should have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_worker, texts_of

from fleet_operator.core import fleet_plan
from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.pod_actions import DeletePod

IMAGE = "rlfleet/worker:1"
TODAY = plan_fleet(make_fleet(), default_image=IMAGE, holds_requests=False, now=NOW).revision


def plan(*workers: WorkerBuilder, holds_requests: bool = False, **spec: object) -> FleetPlan:
    return plan_fleet(
        make_fleet(*workers, **spec),
        default_image=IMAGE,
        holds_requests=holds_requests,
        now=NOW,
    )


def up(ordinal: int, revision: str = TODAY) -> WorkerBuilder:
    return make_worker(ordinal).serving("1").of_revision(revision)


def old(ordinal: int) -> WorkerBuilder:
    return up(ordinal, "old")


PLANS = {
    "a fleet that is complete is left": ([up(0), up(1)], 2, []),
    "missing ordinals are created": ([up(1)], 3, ["CreatePod policy-0", "CreatePod policy-2"]),
    "a pod that goes still holds its name": ([up(0), up(1).going()], 2, []),
    "workers beyond the replicas drain": (
        [up(0), up(1), up(2)],
        1,
        ["BeginDrain policy-1", "BeginDrain policy-2"],
    ),
    "a worker that serves stays before one that is silent and not ready": (
        [up(0).silent(50).unready(), up(1)],
        1,
        ["BeginDrain policy-0"],
    ),
    "a worker that answers and serves stays before its probe has shown that": (
        [up(0).joining("1").unready(), up(1).unready()],
        1,
        ["DeletePod policy-0"],
    ),
    "a pod beyond that goes is left to go": ([up(0), up(1).going()], 1, []),
    "replicas can be 0": ([up(0)], 0, ["BeginDrain policy-0"]),
    "a quarantined pod is deleted": ([up(0).quarantined(), up(1)], 2, ["DeletePod policy-0"]),
    "one that goes is left to go": ([up(0).quarantined().going(), up(1)], 2, []),
    "pods that ended are deleted": (
        [up(0).ended("Failed"), up(1).ended("Succeeded")],
        2,
        ["DeletePod policy-0", "DeletePod policy-1"],
    ),
    "a pod on a lost node is the cluster's to judge": ([up(0).not_running("Unknown")], 1, []),
}


@pytest.mark.parametrize(("workers", "replicas", "done"), PLANS.values(), ids=PLANS)
def test_the_pods_to_create_and_delete(workers, replicas, done):
    assert texts_of(plan(*workers, replicas=replicas).actions) == done


OLD = [old(0), old(1), old(2)]
REPLACED = {
    "one at a time": (OLD, 1, ["BeginDrain policy-0"]),
    "as many as may be away": (OLD, 2, ["BeginDrain policy-0", "BeginDrain policy-1"]),
    "all where all may be": (OLD, 9, [f"BeginDrain policy-{n}" for n in range(3)]),
    "not while a worker is missing": ([up(0).unready().joining("1"), old(1)], 1, []),
    "not while a worker is terminating": ([up(0).going(), old(1), old(2)], 1, []),
    "workers that do not serve go first and do not count": (
        [old(0), old(1).not_running(), old(2)],
        1,
        ["DeletePod policy-1"],
    ),
    "a template that never came up is replaced at once": (
        [worker.not_running() for worker in OLD],
        1,
        [f"DeletePod policy-{n}" for n in range(3)],
    ),
    "a probe that failed once on an admitted worker costs it nothing": (
        [old(0).unready(), old(1), old(2)],
        1,
        [],
    ),
    "no worker is deleted for two reasons": (
        [old(0).quarantined(), old(1), old(2)],
        3,
        ["BeginDrain policy-1", "BeginDrain policy-2", "DeletePod policy-0"],
    ),
}


@pytest.mark.parametrize(("workers", "unavailable", "done"), REPLACED.values(), ids=REPLACED)
def test_out_of_date_pods_are_replaced(workers, unavailable, done):
    made = plan(*workers, update={"maxUnavailable": unavailable})

    assert texts_of(made.actions) == done


def test_failed_and_surplus_pods_are_deleted_while_a_rollout_holds_workers():
    workers = [up(0).quarantined(), up(1), up(2), up(3)]

    assert texts_of(plan(*workers, holds_requests=True, replicas=2).actions) == [
        "BeginDrain policy-3",
        "DeletePod policy-0",
    ]


def test_a_pod_is_deleted_by_its_uid_with_the_reason():
    (action,) = plan(up(0).with_uid("u-7").quarantined("no answer")).actions

    assert isinstance(action, DeletePod)
    assert (action.pod_uid, action.reason) == ("u-7", "it was quarantined: no answer")


def test_a_large_fleet_is_created_in_batches_lowest_ordinals_first():
    made = plan(up(3), replicas=1_000)

    assert len(made.actions) == fleet_plan.CREATE_AT_ONCE
    assert [a.pod_name for a in made.actions][:4] == [
        "policy-0",
        "policy-1",
        "policy-2",
        "policy-4",
    ]


def test_out_of_date_pods_are_counted_until_they_are_deleted():
    assert plan(old(0), old(1).going(), up(2)).outdated == 1


class TestInvalidOverlay:
    def test_existing_pods_stay_and_none_is_created(self):
        made = plan(up(0), old(1), replicas=4, podOverlay={"spec": None})

        assert (made.actions, made.outdated) == ((), 0)
        assert "spec.podOverlay" in made.problem

    def test_surplus_and_lost_pods_are_deleted(self):
        workers = [up(0).ended(), up(1), up(2), up(3)]
        made = plan(*workers, replicas=2, podOverlay={"kind": "Pod"})

        assert texts_of(made.actions) == ["BeginDrain policy-3", "DeletePod policy-0"]


class TestUnrecordedTemplate:
    """No successor can be made: the rights for it are missing, or the API server does not answer."""

    def plan(self, *workers: WorkerBuilder, **spec: object) -> FleetPlan:
        fleet = replace(make_fleet(*workers, **spec), template=None)
        return plan_fleet(fleet, default_image=IMAGE, holds_requests=False, now=NOW)

    def test_no_worker_is_replaced_or_created(self):
        workers = [old(0), old(1), old(2).joining("1")]
        made = self.plan(*workers, replicas=4, update={"maxUnavailable": "100%", "maxSurge": 1})

        assert made.actions == ()
        assert made.outdated == 3

    def test_a_running_drain_continues(self):
        made = self.plan(old(0).draining_since(NOW), old(1))

        assert texts_of(made.calls) == ["fence on policy-0"]
        assert made.actions == ()

    def test_workers_beyond_the_replicas_are_deleted(self):
        made = self.plan(old(0), old(1), old(2), replicas=2)

        assert texts_of(made.actions) == ["BeginDrain policy-2"]

    def test_none_stays_to_bridge_a_change_that_cannot_go_on(self):
        """Otherwise one that serves would go, and one stay that starts."""
        workers = [up(0).joining("1"), old(1), old(2), up(3), up(4)]
        made = self.plan(*workers, replicas=3, update={"maxUnavailable": 0, "maxSurge": 2})

        assert texts_of(made.actions) == ["BeginDrain policy-2", "DeletePod policy-0"]

    def test_a_worker_that_has_just_hung_goes_before_one_that_is_ready(self):
        made = self.plan(old(0), old(1).silent(6).unready(), old(2), replicas=2)

        assert texts_of(made.actions) == ["BeginDrain policy-1"]

    def test_a_failed_worker_is_deleted(self):
        assert texts_of(self.plan(old(0), old(1).ended()).actions) == ["DeletePod policy-1"]
