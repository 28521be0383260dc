"""Weights of fleets that a trainer drives: rewritten directories, and transfers over a collective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_worker, texts_of
from tests.support.identities import (
    D1,
    D2,
    asks,
    decided,
    fleet_of,
    has,
    loaded,
    pin,
    replaced,
    served,
    verdicts,
)
from tests.support.present import present

from fleet_operator.core.decision import Decision
from fleet_operator.core.manifests import children
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import MAX_PINNED, AppliedWeights, FleetStatus
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


class TestExternalFleets:
    WEIGHTS: ClassVar = {"roots": ["/weights"], "management": "External"}

    def external(self, *workers: WorkerBuilder) -> Decision:
        status = served("3", "/weights/run-7/step_3", D1)
        given: dict[str, Any] = {"replicas": max(3, len(workers))}
        return decided(fleet_of(*workers, weights=self.WEIGHTS, status=status, **given))

    def stalled(self, decision: Decision) -> str | None:
        """Why the fleet is stalled, and then not Ready; None if it is Ready."""
        conditions = decision.fleet.conditions
        ready = condition_of(conditions, ConditionType.READY)
        stalled = condition_of(conditions, ConditionType.STALLED)
        assert ready is not None
        assert (ready.status == "True") == (stalled is None)
        return stalled and stalled.reason

    def test_a_version_from_another_directory_belongs_to_another_run(self):
        path = "/weights/run-8/step_3"
        workers = [has(make_worker(n).serving("3"), path, D2) for n in range(3)]
        decision = self.external(*workers)

        assert texts_of(decision.worker_calls) == []
        assert present(decision.fleet.applied).digest == D2
        assert [p.digest for p in decision.fleet.pinned] == [D2, D1]

    def test_other_files_from_one_directory_are_reported_and_nothing_changes(self):
        """Processes that have restarted do not remember what the directory held."""
        path = "/weights/run-7/step_3"
        workers = [has(make_worker(n).serving("3"), path, D2) for n in range(3)]
        joining_worker = has(make_worker(3).joining("3"), path, D2)
        decision = self.external(*workers, joining_worker)

        assert texts_of(decision.worker_calls) == []
        assert self.stalled(decision) == "VersionReused"
        assert present(decision.fleet.applied).digest == D1
        assert [p.digest for p in decision.fleet.pinned] == [D1]

    def test_workers_that_all_got_a_newer_version_while_none_was_admitted_are_admitted(self):
        """The files of the applied version may have been deleted before the workers were lost."""
        workers = [loaded(make_worker(n).joining("4"), "/weights/step_4", D2) for n in range(3)]

        assert texts_of(self.external(*workers).worker_calls) == [
            f"admit 4 on policy-{n}" for n in range(3)
        ]

    @pytest.mark.parametrize(
        "others",
        [
            pytest.param([], id="some are missing"),
            pytest.param([make_worker(2).joining("base")], id="one has the model's weights"),
            pytest.param(
                [loaded(make_worker(2).joining("4"), "/weights/step_4", D1)],
                id="one has other bytes",
            ),
            pytest.param(
                [has(make_worker(2).joining("4"), "/weights/step_4", D2)],
                id="one has started on it: the ConfigMap lags behind the status",
            ),
        ],
    )
    def test_otherwise_they_wait_for_the_applied_version(self, others):
        workers = [loaded(make_worker(n).joining("4"), "/weights/step_4", D2) for n in range(2)]

        assert "admit 4 on policy-0" not in texts_of(self.external(*workers, *others).worker_calls)

    def test_the_models_own_weights_are_not_an_update(self):
        workers = [make_worker(n).joining("base") for n in range(3)]

        assert "admit base on policy-0" not in texts_of(self.external(*workers).worker_calls)

    def test_a_reused_version_is_not_admitted(self):
        path = "/weights/run-7/step_3"
        workers = [has(make_worker(n).joining("3"), path, D2) for n in range(3)]

        assert not [c for c in self.external(*workers).worker_calls if c.kind == "admit"]

    def test_the_first_files_of_a_directory_are_remembered_after_another_version(self):
        workers = [has(make_worker(n).serving("4"), "/weights/step_4", D2) for n in range(3)]
        decision = self.external(*workers)
        again = [has(make_worker(n).serving("3"), "/weights/run-7/step_3", D2) for n in range(3)]
        weights = {"roots": ["/weights"], "management": "External"}
        later = decided(fleet_of(*again, weights=weights, status=decision.fleet))

        assert self.stalled(decision) is None
        assert self.stalled(later) == "VersionReused"

    def test_reports_of_workers_never_exceed_what_a_status_can_hold(self):
        workers = [
            has(make_worker(n).serving("3"), f"/weights/{n}", D2) for n in range(2 * MAX_PINNED)
        ]

        found = self.external(*workers).fleet
        assert len(found.pinned) == MAX_PINNED
        assert found.dropped_pins is not None, "the others have left a mark"
        assert [(mark.run_id, mark.up_to) for mark in found.dropped_pins.runs] == [(None, 3)]

    def test_a_directory_that_no_resource_could_have_is_not_pinned(self):
        workers = [has(make_worker(n).serving("3"), "../3", D2) for n in range(3)]

        assert [p.digest for p in self.external(*workers).fleet.pinned] == [D1]

    def test_a_joining_worker_with_other_bytes_gets_those_of_the_majority(self):
        workers = [has(make_worker(n).serving("3"), "/weights/run-8/step_3", D2) for n in range(2)]
        joining_worker = has(make_worker(2).joining("3"), "/weights/run-7/step_3", D1)
        (call,) = self.external(*workers, joining_worker).worker_calls

        assert (call.kind, call.digest) == ("stage", D2)

    @pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "at first sight"])
    def test_a_minority_with_other_files_of_one_directory_is_fenced_and_reported(self, pinned):
        """The directory was written again between the updates of two workers."""
        path = "/weights/run-7/step_3"
        workers = [has(make_worker(n).serving("3"), path, D1) for n in range(2)]
        workers += [has(make_worker(2).serving("3"), path, D2)]
        status = served("3", path, D1)
        status = status if pinned else replaced(status, ())
        decision = decided(fleet_of(*workers, weights=self.WEIGHTS, status=status))

        assert texts_of(decision.worker_calls) == ["fence on policy-2"]
        assert self.stalled(decision) == "VersionReused"

    def test_a_pause_of_the_trainer_keeps_the_pods_while_a_version_is_reused(self):
        path = "/weights/run-7/step_3"
        workers = [has(make_worker(n).serving("3"), path, D2) for n in range(2)]
        workers += [has(make_worker(2).paused("3"), path, D2)]
        decision = self.external(*workers)

        assert self.stalled(decision) == "VersionReused"
        assert present(decision.rollout).step.holds_requests

    @pytest.mark.parametrize(("run", "reported"), [(None, "VersionReused"), ("run-7", None)])
    def test_a_pin_of_a_run_says_nothing_about_directories(self, run, reported):
        """It was made while the operator drove the fleet."""
        path = "/weights/policy"
        workers = [has(make_worker(n).serving("3"), path, D2) for n in range(3)]
        status = replaced(served("3", path, D2), (pin("3", path, D1, run),))
        decision = decided(fleet_of(*workers, weights=self.WEIGHTS, status=status))

        assert self.stalled(decision) == reported

    def test_a_minority_with_other_bytes_is_fenced(self):
        workers = [has(make_worker(n).serving("3"), "/weights/run-8/step_3", D2) for n in range(2)]
        differing = has(make_worker(2).serving("3"), "/weights/run-7/step_3", D1)

        assert texts_of(self.external(*workers, differing).worker_calls) == ["fence on policy-2"]

    def test_weights_received_over_a_collective_are_not_the_files_of_the_same_version(self):
        workers = [has(make_worker(n).serving("3"), "/weights/run-8/step_3", D2) for n in range(2)]
        joining_worker = make_worker(2).joining("3").from_source(None)

        assert texts_of(self.external(*workers, joining_worker).worker_calls) == [
            "stage 3 on policy-2"
        ]

    @pytest.mark.parametrize("version", ["3", "4"])
    def test_weights_that_all_received_while_none_was_admitted_are_admitted(self, version):
        """Version 3 is the applied one, from a directory: these are other weights."""
        workers = [loaded(make_worker(n).joining(version), None, None) for n in range(3)]
        decision = self.external(*workers)

        assert texts_of(decision.worker_calls) == [
            f"admit {version} on policy-{n}" for n in range(3)
        ]
        assert {c.digest for c in decision.worker_calls} == {None}
        assert present(decision.fleet.applied).source is None

    def test_received_weights_and_files_of_one_name_are_two_versions(self):
        """No worker is admitted next to the other kind, and the fleet is not Ready with both."""
        status = replaced(served("3", "/weights/step_3", D1), ())
        workers = [make_worker(n).serving("3").from_source(None) for n in range(2)]
        workers += [has(make_worker(2).serving("3"), "/weights/step_3", D1)]
        decision = decided(fleet_of(*workers, weights=self.WEIGHTS, status=status))

        assert texts_of(decision.worker_calls) == ["fence on policy-2"]
        ready = present(condition_of(decision.fleet.conditions, ConditionType.READY))
        assert ready.status == "False"
        assert {(v.digest, v.workers) for v in decision.fleet.versions} == {(None, 2), (D1, 1)}


class TestTransferredWeightsUnderTheOperator:
    """A fleet whose trainer sent weights over a collective, and that the operator drives now."""

    STATUS = FleetStatus(applied=AppliedWeights(version="7", applied_at=NOW))
    SERVING = tuple(make_worker(n).serving("7").from_source(None) for n in range(2))

    def test_a_joining_worker_gets_no_call_and_it_is_reported(self):
        decision = decided(
            fleet_of(*self.SERVING, make_worker(2).joining("base"), status=self.STATUS)
        )

        assert decision.worker_calls == ()
        stalled = present(condition_of(decision.fleet.conditions, ConditionType.STALLED))
        assert stalled.reason == "SourceUnknown"

    def test_after_all_workers_were_lost_the_next_version_is_loaded(self):
        workers = [make_worker(n).joining("base") for n in range(3)]
        decision = decided(fleet_of(*workers, wants=asks("8", "/weights/8"), status=self.STATUS))

        assert texts_of(decision.worker_calls) == [f"stage 8 on policy-{n}" for n in range(3)]

    def test_a_joining_worker_prepares_the_next_version_meanwhile(self):
        wants = asks("8", "/weights/8")
        joining_worker = make_worker(2).joining("base")
        decision = decided(fleet_of(*self.SERVING, joining_worker, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == [f"stage 8 on policy-{n}" for n in range(3)]

    @pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
    def test_a_rollback_to_them_asks_no_worker_to_read_files(self, strategy):
        wants = asks("8", "/weights/8")
        halted = WeightsStatus(
            observed_generation=1, desired_version="8", phase=RolloutPhase.HALTED, started_at=NOW
        )
        ahead = has(make_worker(2).paused("8").loaded(), "/weights/8", D2)
        behind = [make_worker(n).paused("7").from_source(None) for n in range(2)]
        observed = fleet_of(
            *behind,
            ahead,
            wants=replace(wants, status=halted),
            status=self.STATUS,
            rollout={"strategy": strategy, "onFailure": "Rollback"},
        )
        calls = texts_of(decided(observed).worker_calls)

        assert {"resume 7 on policy-0", "resume 7 on policy-1"} <= set(calls)
        assert "stage 7 on policy-2" not in calls
        if strategy == "Synchronized":
            assert "fence on policy-2" in calls

    def test_a_pin_of_their_name_closes_no_worker(self):
        """The trainer had served this version from a directory before."""
        status = replaced(self.STATUS, (pin("7", "/weights/7", D1),))
        workers = [*self.SERVING, make_worker(2).serving("7").from_source(None)]

        assert decided(fleet_of(*workers, status=status)).worker_calls == ()

    def test_no_canary_reads_transferred_weights(self):
        workers = [make_worker(n).joining("base").probed("base") for n in range(3)]
        decision = decided(fleet_of(*workers, status=self.STATUS, rollout={"strategy": "Canary"}))

        assert decision.worker_calls == ()

    def test_the_config_map_names_the_version_alone(self):
        decision = decided(fleet_of(*self.SERVING, status=self.STATUS))
        assert decision.rollout is not None
        config_map = children.applied_config_map(fleet_of(*self.SERVING), decision.rollout.applied)

        assert config_map["data"] == {"version": "7"}

    def test_a_version_of_the_same_name_is_refused(self):
        workers = [*self.SERVING, make_worker(2).serving("7").from_source(None)]
        decision = decided(fleet_of(*workers, wants=asks("7", "/weights/7"), status=self.STATUS))

        assert verdicts(decision)[1] == "VersionReused"
