"""Workers that are to go end their requests first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    fleet_at,
    make_fleet,
    make_transition,
    make_worker,
    texts_of,
)

from fleet_operator.core.actions import Fence
from fleet_operator.core.decision import decide
from fleet_operator.core.draining import LATE_SECONDS
from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.pod_actions import BeginDrain, DeletePod
from fleet_operator.core.worker_view import Standing

IMAGE = "rlfleet/worker:1"
TODAY = plan_fleet(make_fleet(), default_image=IMAGE, holds_requests=False, now=NOW).revision
TIMEOUT = 300


def plan(*workers: WorkerBuilder, holds_requests: bool = False, **spec: object) -> FleetPlan:
    fleet = make_fleet(*workers, **spec)
    return plan_fleet(fleet, default_image=IMAGE, holds_requests=holds_requests, now=NOW)


def up(ordinal: int, *, requests: int = 0, revision: str = TODAY) -> WorkerBuilder:
    return make_worker(ordinal).serving("1").of_revision(revision).with_requests(requests)


def marked(worker: WorkerBuilder, *, seconds_ago: float = 1) -> WorkerBuilder:
    return worker.draining_since(NOW - timedelta(seconds=seconds_ago))


def fenced(ordinal: int) -> WorkerBuilder:
    """Its latch is closed and its requests run."""
    return marked(up(ordinal).closed_pausing("1").doing("fence"))


class TestDrain:
    def test_a_serving_worker_is_first_marked_with_the_time(self):
        made = plan(up(0), up(1), replicas=1)
        (action,) = made.actions

        assert action == BeginDrain(
            pod_name="policy-1", pod_uid="uid-1", since=NOW, reason="the fleet has 1 replica now"
        )
        assert made.calls == ()

    def test_a_marked_worker_is_fenced_with_the_drain_timeout(self):
        made = plan(up(0), marked(up(1)), replicas=1, update={"drainTimeoutSeconds": 77})
        (call,) = made.calls

        assert isinstance(call, Fence)
        assert (call.pod_uid, call.drain_timeout_seconds) == ("uid-1", 77)
        assert made.actions == ()

    @pytest.mark.parametrize(
        "worker",
        [
            pytest.param(fenced(1), id="its requests run"),
            pytest.param(marked(up(1)).doing("fence"), id="its fence has just begun"),
            pytest.param(marked(up(1).paused("1")), id="it holds requests for a rollout"),
            pytest.param(up(1).paused("1"), id="it does so before it is marked"),
            pytest.param(marked(up(1)).asked_to("apply 2"), id="a call is at work on it"),
            pytest.param(marked(up(1)).doing("load", "2"), id="it works on something"),
            pytest.param(marked(up(1)).silent(5), id="it has been silent for a moment"),
            pytest.param(
                marked(up(1).loading("1", "2")).silent(11),
                id="its probe answers, and it held requests before it fell silent",
            ),
        ],
    )
    def test_a_drain_waits_while(self, worker):
        made = plan(up(0), worker, replicas=1)

        assert (made.actions, made.calls) == ((), ())

    @pytest.mark.parametrize(
        "worker",
        [
            pytest.param(marked(make_worker(1).joining("1")), id="its requests have ended"),
            pytest.param(marked(make_worker(1).starting()), id="its process has started again"),
            pytest.param(marked(up(1).not_running()), id="nothing runs"),
            pytest.param(marked(up(1)).silent(11), id="it does not answer"),
            pytest.param(
                marked(up(1).loading("1", "2")).silent(11).unready(),
                id="neither it nor its probe answers, and it held requests",
            ),
            pytest.param(
                marked(up(1).paused("1"), seconds_ago=TIMEOUT + 1).silent(11),
                id="it has not answered for the whole drain timeout",
            ),
            pytest.param(
                fenced(1).draining_since(NOW - timedelta(seconds=TIMEOUT + LATE_SECONDS + 1)),
                id="it is at its fence long after the drain timeout",
            ),
        ],
    )
    def test_a_worker_is_deleted_by_its_uid_when(self, worker):
        made = plan(up(0), worker.of_revision(TODAY), replicas=1)
        (action,) = made.actions

        assert isinstance(action, DeletePod)
        assert action.pod_uid == "uid-1"

    def test_a_mark_from_far_in_the_future_is_replaced(self):
        made = plan(up(0), marked(up(1), seconds_ago=-LATE_SECONDS - 1), replicas=1)

        assert texts_of(made.actions) == ["BeginDrain policy-1"]


class TestCancelledDrain:
    def test_a_worker_that_is_kept_is_not_fenced(self):
        made = plan(up(0), marked(up(1)), replicas=2)

        assert texts_of(made.actions) == ["EndDrain policy-1"]
        assert made.calls == ()

    def test_a_running_fence_is_waited_for(self):
        made = plan(up(0), fenced(1), replicas=2)

        assert made.actions == ()

    def test_a_drained_worker_joins_again(self):
        worker = marked(make_worker(1).joining("1").of_revision(TODAY))

        assert texts_of(plan(up(0), worker, replicas=2).actions) == ["EndDrain policy-1"]

    @pytest.mark.parametrize("update", [{"paused": True}, {"type": "OnDelete"}])
    def test_a_held_update_cancels_its_drains(self, update):
        made = plan(up(0), marked(up(1, revision="old")), update=update)

        assert texts_of(made.actions) == ["EndDrain policy-1"]
        assert made.outdated == 1


class TestChoice:
    def test_unadmitted_workers_go_first_then_those_with_the_fewest_requests(self):
        workers = [up(0, requests=9), up(1, requests=2), up(2, requests=5)]
        joining = make_worker(3).joining("1").of_revision(TODAY)

        assert texts_of(plan(*workers, joining, replicas=3).actions) == ["DeletePod policy-3"]
        assert texts_of(plan(*workers, replicas=2).actions) == ["BeginDrain policy-1"]

    def test_a_draining_worker_remains_the_choice(self):
        made = plan(up(0), marked(up(1, requests=9)), up(2), replicas=2)

        assert [c.pod_uid for c in made.calls] == ["uid-1"]
        assert made.actions == ()

    def test_an_external_fleet_keeps_the_lowest_ordinals(self):
        weights = {"roots": ["/weights"], "management": "External"}
        held = {"type": "OnDelete"}
        made = plan(up(0), up(1, requests=9), replicas=1, weights=weights, update=held)

        assert texts_of(made.actions) == ["BeginDrain policy-1"]

    def test_missing_ordinals_are_filled_from_below(self):
        assert texts_of(plan(up(2), up(3), replicas=3).actions) == ["CreatePod policy-0"]


class TestUpdates:
    @pytest.mark.parametrize("update", [{"paused": True}, {"type": "OnDelete"}])
    def test_a_held_update_replaces_no_worker(self, update):
        made = plan(up(0, revision="old"), up(1, revision="old"), update=update | {"maxSurge": 1})

        assert made.actions == ()
        assert made.outdated == 2

    def test_a_draining_worker_counts_as_unavailable(self):
        made = plan(marked(up(0, revision="old")), up(1, revision="old"), up(2, revision="old"))

        assert made.actions == ()
        assert [c.pod_uid for c in made.calls] == ["uid-0"]

    def test_a_drain_continues_while_a_rollout_holds_other_workers(self):
        made = plan(marked(up(0, revision="old")), up(1).paused("1"), holds_requests=True)

        assert [c.pod_uid for c in made.calls] == ["uid-0"]

    @pytest.mark.parametrize(
        ("unavailable", "gone"), [("50%", 2), ("49%", 1), ("0%", 1), (0, 1), ("100%", 4)]
    )
    def test_percentages_are_rounded_as_in_a_deployment(self, unavailable, gone):
        workers = [up(n, revision="old") for n in range(4)]
        update = {"maxUnavailable": unavailable, "maxSurge": 0}

        assert len(plan(*workers, update=update).actions) == gone

    def test_a_percentage_of_surge_is_rounded_up(self):
        workers = [up(n, revision="old") for n in range(4)]
        made = plan(*workers, update={"maxUnavailable": 0, "maxSurge": "26%"})

        assert texts_of(made.actions) == ["CreatePod policy-4", "CreatePod policy-5"]


class TestBesideARollout:
    def test_a_barrier_does_not_wait_for_a_draining_worker(self):
        members = [up(n).staged("2") for n in (0, 1)]
        status = fleet_at("1", transition=make_transition("2", "1"))
        fleet = make_fleet(*members, fenced(2), wants="2", replicas=2, status=status)
        decision = decide(fleet, default_image=IMAGE, now=NOW)

        assert fleet.workers[2].standing is Standing.ABSENT
        assert [(c.kind, c.pod_uid) for c in decision.worker_calls] == [
            ("pause", "uid-0"),
            ("pause", "uid-1"),
        ]

    def test_a_worker_that_must_be_fenced_gets_no_other_call(self):
        members = [up(n).staged("2") for n in (0, 1)]
        fleet = make_fleet(*members, marked(up(2).staged("2")), wants="2", replicas=2)
        calls = decide(fleet, default_image=IMAGE, now=NOW).worker_calls

        assert [c.kind for c in calls if c.pod_uid == "uid-2"] == ["fence"]

    def test_a_marked_worker_before_its_fence_is_a_member(self):
        assert marked(up(0)).view().standing is Standing.OPEN

    def test_a_worker_whose_drain_is_cancelled_joins(self):
        joining_worker = make_worker(1).joining("1").of_revision(TODAY)
        fleet = make_fleet(up(0), joining_worker, wants="1", status=fleet_at("1"))
        calls = decide(fleet, default_image=IMAGE, now=NOW).worker_calls
        drains = replace(fleet, workers=(fleet.workers[0], marked(joining_worker).view()))

        assert [c.kind for c in calls] == ["admit"]
        assert decide(drains, default_image=IMAGE, now=NOW).worker_calls == ()
