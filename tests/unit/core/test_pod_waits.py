"""A pod that waits for what the cluster may still bring is progress until a deadline has passed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_transition,
    make_weights,
)
from tests.support.figures import figures
from tests.support.present import present
from tests.unit.core.test_fleet_status import condition, status_of, up

from fleet_operator.core.actions import Apply
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.events import fleet_events
from fleet_operator.core.lagging import lagging_workers
from fleet_operator.core.manifests import revisions
from fleet_operator.core.observed import Watched
from fleet_operator.core.pod_waits import Awaited, PodWait
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

NODE = PodWait(awaited=Awaited.NODE, reason="Unschedulable", message="0/3 nodes are available")
GATE = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")
IMAGE = PodWait(awaited=Awaited.IMAGE, reason="ImagePullBackOff", message="Back-off pulling")
VOLUMES = PodWait(awaited=Awaited.VOLUMES, reason="ContainerCreating")
LOST = PodWait(awaited=Awaited.LOST_NODE, reason="NodeLost", message="node gpu-7 does not report")
DEADLINE_SECONDS = 600


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def waits(ordinal: int, wait: PodWait, **fields: object) -> WorkerBuilder:
    given = {k: getattr(wait, k) for k in wait.__dataclass_fields__} | fields
    return up(ordinal).not_running().awaiting(PodWait(**given))


class TestDurationOfAWait:
    @pytest.mark.parametrize(
        ("wait", "seconds"),
        [
            pytest.param({"since": ago(90)}, 90, id="by the pod's own account"),
            pytest.param(
                {"since": ago(90), "watched_seconds": 30}, 90, id="a new leader believes the pod"
            ),
            pytest.param(
                {"since": ago(9_000), "watched_seconds": 30, "saw_it_begin": True},
                30,
                id="a gate that was removed does not move the pod's time, the leader saw it go",
            ),
            pytest.param(
                {"since": ago(-300), "watched_seconds": 30}, 30, id="the pod's clock is ahead"
            ),
            pytest.param({"since": ago(-300)}, 0, id="it is never negative"),
            pytest.param({"watched_seconds": 30}, 30, id="the pod has no time"),
        ],
    )
    def test_a_wait_is_measured_on_the_safest_clock(self, wait, seconds):
        found = PodWait(awaited=Awaited.NODE, reason="Unschedulable", **wait)

        assert found.lasted_seconds(NOW) == max(seconds, 0)


class TestStalled:
    @pytest.mark.parametrize(
        "wait", [NODE, IMAGE, VOLUMES], ids=["a node", "an image", "its volumes"]
    )
    @pytest.mark.parametrize(
        ("seconds", "there"),
        [(0, False), (DEADLINE_SECONDS - 1, False), (DEADLINE_SECONDS, True)],
    )
    def test_a_wait_beyond_its_limit_is_stalled(self, wait, seconds, there):
        fleet = make_fleet(up(0), waits(1, wait, since=ago(seconds)))
        found = condition_of(status_of(fleet).conditions, ConditionType.STALLED)

        assert (found is not None) is there
        if found is not None:
            assert found.reason is ConditionReason.WORKERS_FAILING
            assert f"policy-1: {wait}" in found.message

    def test_the_fleet_sets_the_limit(self):
        fleet = make_fleet(up(0), waits(1, NODE, since=ago(61)), progressDeadlineSeconds=60)

        assert condition_of(status_of(fleet).conditions, ConditionType.STALLED) is not None

    @pytest.mark.parametrize("deadline_seconds", [0, DEADLINE_SECONDS])
    def test_a_gated_pod_never_counts_as_failing(self, deadline_seconds):
        gated = [waits(n, GATE, since=ago(1_000_000)) for n in range(3)]
        fleet = make_fleet(
            *gated, wants=make_weights("7"), progressDeadlineSeconds=deadline_seconds
        )
        status = status_of(fleet)

        assert condition_of(status.conditions, ConditionType.STALLED) is None
        found = condition(fleet, ConditionType.PROGRESSING)
        assert (found.status, found.reason) == ("True", ConditionReason.WAITING_FOR_QUOTA)

    def test_a_deleted_pod_waits_for_nothing(self):
        fleet = make_fleet(up(0), waits(1, NODE, since=ago(9_999)).going(gone_by=NOW))

        assert condition_of(status_of(fleet).conditions, ConditionType.STALLED) is None


class TestRolloutsBesideAGatedPod:
    """A gated pod counts as not there: it neither stops the others nor makes their rollout late."""

    def decided(self, *workers: WorkerBuilder, phase: RolloutPhase, seconds: float = 10, **given):
        watched = Watched(phase_seconds=seconds, attempt_seconds=seconds)
        status = WeightsStatus(desired_version="42", started_at=ago(seconds), phase=phase)
        wants = make_weights("42", status=status, watched=watched)
        fleet = make_fleet(*workers, wants=wants, **given)
        revision = revisions.revision_of(fleet)
        alike = (w.of_revision(revision) for w in workers)
        recorded = AppliedWeights(version="41", source=WeightSource(path="/weights/step_41"))
        moves = make_transition(strategy="Rolling")
        recorded = FleetStatus(applied=recorded, transition=moves)
        observed = make_fleet(*alike, wants=wants, status=recorded, **given)
        made = decide(observed, default_image="i", now=NOW)
        assert made.defects == ()
        return made

    def applied_to(self, made) -> list[str]:
        return [c.pod_name for c in made.worker_calls if isinstance(c, Apply)]

    def test_workers_missing_for_another_reason_are_unavailable(self):
        workers = [up(0).serving("41").staged("42"), waits(1, GATE), waits(2, NODE)]
        rollout = {"strategy": "Rolling", "maxUnavailable": 1}
        made = self.decided(*workers, phase=RolloutPhase.STAGING, seconds=1e6, rollout=rollout)

        assert self.applied_to(made) == []
        found = present(condition_of(made.fleet.conditions, ConditionType.STALLED))
        assert found.reason is ConditionReason.DEADLINE_EXCEEDED
        assert 1 in figures(found.message)

    @pytest.mark.parametrize(
        ("replicas", "workers", "expected"),
        [
            pytest.param(3, [up(0), up(1), waits(2, GATE)], 2, id="one of the replicas"),
            pytest.param(3, [up(0), waits(1, GATE)], 2, id="a second worker is missing"),
            pytest.param(2, [up(0), up(1), waits(2, GATE)], 2, id="one beyond the replicas"),
            pytest.param(2, [waits(n, GATE) for n in range(3)], 0, id="all"),
            pytest.param(2, [up(0), waits(1, GATE).going()], 2, id="a deleted worker"),
            pytest.param(2, [up(0), waits(1, GATE).draining_since(NOW)], 2, id="a draining worker"),
            pytest.param(2, [up(0), waits(1, NODE)], 2, id="a node may still come"),
        ],
    )
    def test_the_number_of_expected_workers(self, replicas, workers, expected):
        assert make_fleet(*workers, replicas=replicas).expected_workers == expected


class TestProgress:
    def test_the_cause_of_the_wait_is_reported(self):
        fleet = make_fleet(up(0), waits(1, NODE), waits(2, NODE))
        found = condition(fleet, ConditionType.PROGRESSING)

        assert (found.status, found.reason) == ("True", ConditionReason.WAITING_FOR_NODE)
        assert (
            "2 pods wait for a node. policy-1: Unschedulable: 0/3 nodes are available"
            in found.message
        )
        assert "2 pods wait for a node" in condition(fleet, ConditionType.READY).message

    @pytest.mark.parametrize(
        ("others", "expected"),
        [
            pytest.param([waits(1, LOST), waits(2, GATE)], "NodeLost", id="a lost node"),
            pytest.param([waits(1, GATE), waits(2, NODE)], "WaitingForQuota", id="a gate"),
            pytest.param([waits(1, IMAGE), waits(2, NODE)], "WaitingForNode", id="a node"),
            pytest.param([waits(1, IMAGE), waits(2, VOLUMES)], "WaitingForVolume", id="volumes"),
            pytest.param([waits(1, IMAGE), up(2).starting()], "WaitingForImage", id="an image"),
            pytest.param([up(1).starting(), up(2).joining("0")], "WaitingForEngine", id="vLLM"),
            pytest.param([up(1).joining("0")], "WaitingForWorkers", id="an admission"),
        ],
    )
    def test_the_earliest_step_that_a_pod_waits_for_is_the_reason(self, others, expected):
        fleet = make_fleet(up(0), *others)

        for kind in (ConditionType.READY, ConditionType.PROGRESSING):
            assert condition(fleet, kind).reason == expected

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(waits(1, NODE), id="a node"),
            pytest.param(up(1).starting(), id="an engine"),
            pytest.param(up(1).joining("0"), id="an admission"),
            pytest.param(up(1).not_starting("CrashLoopBackOff: no model"), id="a crash"),
        ],
    )
    def test_a_version_waits_for_what_its_fleet_waits_for(self, other):
        wants = make_weights("base", source={"path": "/models/base"})
        made = decide(make_fleet(up(0), other, wants=wants), default_image="i", now=NOW)

        assert self.shown(made, ConditionType.READY)

    @pytest.mark.parametrize(
        "first",
        [
            pytest.param(waits(0, NODE), id="a node"),
            pytest.param(up(0).starting(), id="an engine"),
            pytest.param(up(0).not_starting("CrashLoopBackOff: no model"), id="a crash"),
        ],
    )
    def test_so_does_the_first_version_which_no_worker_has(self, first):
        fleet = make_fleet(first, waits(1, NODE), wants=make_weights("42"))
        made = decide(fleet, default_image="i", now=NOW)

        assert made.weights["wv-1"].phase is RolloutPhase.PENDING
        for kind in (ConditionType.READY, ConditionType.PROGRESSING):
            assert self.shown(made, kind)

    def test_a_worker_that_serves_on_a_lost_node_is_named(self):
        """Its kubelet is dead and its engine is not: fleet and version were only WaitingForWorkers."""
        cut_off = up(1).unready().awaiting(LOST)
        wants = make_weights("base", source={"path": "/models/base"})
        made = decide(make_fleet(up(0), cut_off, wants=wants), default_image="i", now=NOW)

        assert made.weights["wv-1"].phase is RolloutPhase.APPLIED
        assert self.shown(made, ConditionType.READY) == "NodeLost"
        ready = present(condition_of(made.fleet.conditions, ConditionType.READY))
        assert "policy-1: NodeLost: node gpu-7" in ready.message
        assert made.fleet.waiting_for == "NodeLost"

    def shown(self, made: Decision, kind: ConditionType) -> str:
        """Why workers are missing, which version and fleet say in the same words."""
        of_version, of_fleet = (
            condition_of(status.conditions, kind) for status in (made.weights["wv-1"], made.fleet)
        )
        assert of_version is not None
        assert of_fleet is not None
        shown = (of_version.status, of_version.reason, of_version.message)
        assert shown == (of_fleet.status, of_fleet.reason, of_fleet.message)
        return of_version.reason

    def test_a_worker_that_starts_again_is_named_with_its_end(self):
        again = up(1).starting().starting_again("restarted 1 time; it last ended with exit code 1")
        fleet = make_fleet(up(0), again)

        for kind in (ConditionType.READY, ConditionType.PROGRESSING):
            found = condition(fleet, kind)
            assert found.reason is ConditionReason.WAITING_FOR_ENGINE
            assert "policy-1: restarted 1 time; it last ended" in found.message

    def test_an_event_says_that_a_wait_begins_and_that_it_has_ended(self):
        serving = status_of(make_fleet(up(0), up(1)))
        waiting = status_of(make_fleet(up(0), waits(1, NODE)))
        pulling = status_of(make_fleet(up(0), waits(1, IMAGE), status=waiting))
        late = waits(1, NODE, since=ago(DEADLINE_SECONDS))
        too_long = status_of(make_fleet(up(0), late, status=waiting))
        rolling = status_of(make_fleet(up(0), waits(1, NODE), wants="42", status=waiting))
        placed = status_of(make_fleet(up(0), up(1), wants="42", status=rolling))
        recovered = status_of(make_fleet(up(0), up(1), status=too_long))

        def events(before, after):
            found = fleet_events(before, after)
            return [e.reason for e in found if e.type == "Normal"]

        assert events(serving, waiting) == ["WaitingForNode"]
        assert events(waiting, waiting) == []
        assert events(waiting, pulling) == ["WaitingForImage"]
        assert events(pulling, serving) == ["WaitEnded"]
        assert events(waiting, rolling) == [], "the pod still waits"
        assert events(rolling, placed) == ["WaitEnded"], "the rollout goes on"
        assert events(waiting, too_long) == []
        assert "WaitEnded" in events(too_long, recovered)

    def test_different_causes_are_counted_separately(self):
        fleet = make_fleet(waits(1, IMAGE), waits(0, GATE), waits(2, NODE))

        found = condition(fleet, ConditionType.PROGRESSING).message
        assert "1 pod waits for a scheduling gate, 2 for something else" in found

    def test_the_message_has_no_running_clock(self):
        one, two = (make_fleet(up(0), waits(1, NODE, since=ago(s))) for s in (10, 20))

        assert status_of(one) == status_of(two)


class TestLaggingWorkers:
    def test_a_waiting_worker_comes_after_a_failing_one(self):
        workers = [waits(0, GATE), up(1).not_starting("CrashLoopBackOff"), waits(2, NODE)]
        fleet = make_fleet(*workers)
        found = lagging_workers(fleet, make_weights("base").desired)

        assert [(one.pod, one.reason) for one in found] == [
            ("policy-1", "CrashLoopBackOff"),
            ("policy-0", "SchedulingGated"),
            ("policy-2", "Unschedulable"),
        ]
        assert found[2].message == "0/3 nodes are available"
