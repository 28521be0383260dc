"""The status of a fleet, above all the conditions that need a user."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    applied_status,
    make_fleet,
    make_weights,
    make_worker,
)
from tests.support.figures import figures
from tests.support.present import present

from fleet_operator.api.weights import RolloutOverrides
from fleet_operator.core.fleet_plan import plan_fleet
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_problems import STUCK_SECONDS
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus, RecycledWorker
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import WeightsStatus

IMAGE = "rlfleet/worker:1"
TODAY = plan_fleet(make_fleet(), default_image=IMAGE, holds_requests=False, now=NOW).revision


def status_of(fleet: FleetObserved) -> FleetStatus:
    rollout = plan_rollout(fleet, now=NOW)
    pods = plan_fleet(
        fleet, default_image=IMAGE, holds_requests=rollout.step.holds_requests, now=NOW
    )
    return fleet_status(fleet, rollout, pods, now=NOW)


def condition(fleet: FleetObserved, kind: ConditionType) -> Condition:
    return present(condition_of(status_of(fleet).conditions, kind))


def stalled(*workers: WorkerBuilder, **spec: object) -> Condition | None:
    fleet = make_fleet(*workers, **spec)
    return condition_of(status_of(fleet).conditions, ConditionType.STALLED)


def up(ordinal: int, version: str = "base") -> WorkerBuilder:
    return make_worker(ordinal).serving(version).of_revision(TODAY)


def test_the_endpoint_of_workers_with_a_certificate_is_https():
    fleet = make_fleet(up(0), up(1), engine={"args": ["--ssl_certfile=/tls/tls.crt"]})

    assert status_of(fleet).endpoint == "https://policy.rl.svc:8000"


def test_a_fleet_without_workers_is_not_ready():
    found = condition(make_fleet(replicas=0), ConditionType.READY)

    assert (found.status, found.reason) == ("False", ConditionReason.NO_WORKERS)


AVAILABLE = {
    "all serve": ([up(0), up(1), up(2)], "True", "MinimumServing"),
    "one may be away": ([up(0), up(1), up(2).joining("base")], "True", "MinimumServing"),
    "two may not": ([up(0), up(1).joining("base"), up(2).not_running()], "False", "BelowMinimum"),
    "no worker serves": ([up(n).joining("base") for n in range(3)], "False", "NoWorkers"),
    "all are paused": ([up(n).paused("base") for n in range(3)], "True", "MinimumServing"),
    "as long as one rollout may": ([up(n).paused("base", seconds=720) for n in range(3)], "True", "MinimumServing"),
    "longer than that": ([up(n).paused("base", seconds=721) for n in range(3)], "False", "NoWorkers"),
    "two for longer": ([up(0), *(up(n).paused("base", seconds=721) for n in (1, 2))], "False", "BelowMinimum"),
}  # fmt: skip


@pytest.mark.parametrize(("workers", "holds", "reason"), AVAILABLE.values(), ids=AVAILABLE)
def test_the_conditions_of_availability(workers, holds, reason):
    found = condition(make_fleet(*workers), ConditionType.AVAILABLE)

    assert (found.status, found.reason) == (holds, reason)


def test_a_fleet_whose_only_worker_is_the_canary_is_not_available():
    canary = make_worker(0).joining("42").probed("41")
    fleet = make_fleet(canary, wants="42", rollout={"strategy": "Canary"})

    assert condition(fleet, ConditionType.AVAILABLE).reason == "NoWorkers"


def test_a_hold_may_last_as_long_as_the_weightversion_allows_it():
    workers = [up(n).paused("base", seconds=721) for n in range(3)]
    given = make_weights("base")
    longer = RolloutOverrides.model_validate({"timeouts": {"loadSeconds": 601}})
    wants = replace(given, spec=given.spec.model_copy(update={"rollout": longer}))

    for weights, status in ((given, "False"), (wants, "True")):
        fleet = make_fleet(*workers, wants=[weights])
        assert condition(fleet, ConditionType.AVAILABLE).status == status


@pytest.mark.parametrize("updated", range(5))
def test_an_external_fleet_stays_available_while_its_trainer_holds_the_workers(updated):
    versions = ["42"] * updated + ["41"] * (4 - updated)
    workers = [make_worker(n).paused(v, seconds=9_999) for n, v in enumerate(versions[:4])]
    fleet = make_fleet(*workers, weights={"roots": ["/weights"], "management": "External"})

    assert condition(fleet, ConditionType.AVAILABLE).status == "True"


def test_ready_means_that_clients_reach_every_worker():
    found = condition(make_fleet(up(0), up(1).unready()), ConditionType.READY)

    assert (found.status, found.reason) == ("False", "WaitingForWorkers")
    assert 1 in figures(found.message)


def test_a_worker_in_a_phase_of_a_newer_release_does_not_make_the_fleet_ready():
    verifying = replace(up(1), reported={**(up(1).reported or {}), "phase": "verifying"})
    found = condition(make_fleet(up(0), verifying), ConditionType.READY)

    assert (found.status, found.reason) == ("False", "WaitingForWorkers")


def test_workers_with_a_superseded_version_are_available_where_versions_may_mix():
    workers = [up(0, "41"), up(1, "41"), up(2)]
    fleet = make_fleet(*workers, wants="42", rollout={"strategy": "Rolling"})

    assert condition(fleet, ConditionType.AVAILABLE).status == "True"


def test_a_fleet_that_is_stalled_shows_why_in_kubectl_get():
    """The columns STATUS and MESSAGE are the reason and the message of `Ready`."""
    fleet = make_fleet(up(0), up(1).not_running()._pod(problem='secret "hf" not found'))

    ready, stalled = (
        condition(fleet, kind) for kind in (ConditionType.READY, ConditionType.STALLED)
    )
    assert ready.status == "False"
    assert (ready.reason, ready.message) == (stalled.reason, stalled.message)
    assert 'secret "hf" not found' in ready.message


class TestPodsThatStayInTermination:
    GOING = NOW - timedelta(seconds=STUCK_SECONDS)

    def pod(self, *, seconds_late: float) -> WorkerBuilder:
        late = self.GOING - timedelta(seconds=seconds_late)
        return up(1).on_node("gpu-7").going(gone_by=late)

    def test_pods_of_a_lost_node_are_reported_at_once(self):
        found = stalled(up(0), up(1).on_node("gpu-7").going(gone_by=NOW)._pod(evicted=True))

        assert found is not None
        assert "policy-1 is on node gpu-7" in found.message

    def test_the_message_has_the_node_and_the_remedy(self):
        found = present(stalled(up(0), self.pod(seconds_late=1), up(2).going(gone_by=self.GOING)))

        assert found.reason is ConditionReason.WORKERS_FAILING
        assert "1 pod is stuck terminating. policy-1 is on node gpu-7" in found.message
        assert "kubectl -n rl delete pod policy-1 --force" in found.message

    def test_nothing_is_reported_within_the_grace_period(self):
        assert stalled(up(0), self.pod(seconds_late=-1)) is None

    def test_a_pod_without_a_deadline_is_not_late(self):
        assert stalled(up(0), up(1).going()) is None

    def test_the_message_has_no_running_clock(self):
        one = stalled(up(0), self.pod(seconds_late=1))
        two = stalled(up(0), self.pod(seconds_late=500))

        assert one == two


class TestProblems:
    def test_pods_that_cannot_run_are_reported_in_the_clusters_words(self):
        words = "CreateContainerConfigError: secret not found"
        found = stalled(up(0), up(1).not_starting(words), up(2).not_starting("CrashLoopBackOff"))

        assert found is not None
        assert found.message.startswith(f"2 workers cannot run. policy-1: {words}. ")
        assert "kubectl -n rl describe pod policy-1" in found.message

    def test_a_used_up_restart_budget_is_reported_before_single_pods(self):
        entry = RecycledWorker(pod="policy-0", uid="x", count=5, last_at=NOW)
        fleet = make_fleet(
            up(0).quarantined("no answer"),
            up(1).not_starting("InvalidImageName"),
            status=FleetStatus(recycled=(entry,)),
        )

        found = condition(fleet, ConditionType.STALLED)
        assert found.reason is ConditionReason.FAILURE_BUDGET_EXCEEDED
        assert "policy-0: no answer" in found.message

    def test_an_invalid_spec_is_reported_first(self):
        found = present(stalled(up(0).not_starting("InvalidImageName"), podOverlay={"spec": None}))

        assert found.reason is ConditionReason.INVALID_SPEC

    def test_a_refused_source_has_the_message_of_the_weightversion(self):
        workers = [up(n).refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2)]
        begun = WeightsStatus(desired_version="42", started_at=NOW - timedelta(seconds=9))
        found = present(stalled(*workers, wants=make_weights("42", status=begun)))

        assert found.reason is ConditionReason.SOURCE_NOT_FOUND

    def test_an_abandoned_version_points_to_its_weightversion(self):
        weights = make_weights("42", status=applied_status("42", phase="Halted"))
        found = present(stalled(up(0), up(1), wants=weights))

        assert (found.reason, found.message) == (
            ConditionReason.HALTED,
            "the rollout was abandoned: see Stalled of WeightVersion policy",
        )


BASE = make_weights("base", source={"path": "/models/base"})


BEGUN = WeightsStatus(desired_version="42", started_at=NOW - timedelta(seconds=9))
REFUSED = [up(n).refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2)]
HALTED = make_weights("42", status=applied_status("42", phase="Halted"))
AT_REST = {
    "all serve": ([up(0), up(1)], BASE, "False", "UpToDate"),
    "one joins": ([up(0), up(1).joining("base")], BASE, "True", "WaitingForWorkers"),
    "one cannot run": (
        [up(0), up(1).not_running().not_starting("InvalidImageName")],
        BASE,
        "False",
        "WorkersFailing",
    ),
    "a source is refused": (REFUSED, make_weights("42", status=BEGUN), "False", "SourceNotFound"),
    "a version was given up": ([up(0), up(1)], HALTED, "False", "Halted"),
}


@pytest.mark.parametrize(("workers", "wants", "status", "reason"), AT_REST.values(), ids=AT_REST)
def test_the_fleet_is_at_rest_only_without_work_left(workers, wants, status, reason):
    found = condition(make_fleet(*workers, wants=wants), ConditionType.PROGRESSING)

    assert (found.status, found.reason) == (status, reason)


def test_workers_are_counted_by_their_state():
    workers = [
        up(0),
        up(1).staged("x").doing("stage", "42"),
        up(2).paused("base"),
        up(3).loading("base", "42"),
        up(4).joining("base"),
        up(5).starting(),
        up(6).broken(),
        up(7).quarantined(),
        up(8).going(),
    ]
    counts = status_of(make_fleet(*workers)).workers

    assert counts.model_dump() == {
        "total": 8,
        "serving": 2,
        "joining": 2,
        "staging": 1,
        "paused": 1,
        "loading": 1,
        "broken": 1,
        "quarantined": 1,
    }


@pytest.mark.parametrize("kind", [ConditionType.READY, ConditionType.PROGRESSING])
def test_workers_that_wait_for_a_call_are_named_also_when_no_rollout_runs(kind):
    joiners = (up(n).joining("0") for n in (1, 2, 3))

    found = condition(make_fleet(up(0), *joiners, rollout={"maxStaging": 1}), kind)
    assert found.reason == "WaitingForWorkers"
    assert "policy-2, policy-3 wait" in found.message
