"""The files of a version that the fleet serves already are compared for its new WeightVersion."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import NOW, make_worker, texts_of
from tests.support.identities import (
    D1,
    D2,
    RUN_7,
    RUN_8,
    asks,
    decided,
    fleet_of,
    has,
    served,
    verdicts,
)

from fleet_operator.core.observed import Watched, WeightsView
from fleet_worker.protocol import Reason
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


class TestFilesOfAServedVersion:
    """A WeightVersion was created again with the version that all workers serve."""

    SERVING = tuple(has(make_worker(n).serving("40"), RUN_7, D1) for n in range(3))
    STATUS = served("40", RUN_7, D1)
    BEGUN = WeightsStatus(
        observed_generation=1,
        desired_version="40",
        phase=RolloutPhase.COMPARING,
        files_unread=True,
        started_at=NOW - timedelta(minutes=1),
    )
    WATCHED = Watched(phase_seconds=60, attempt_seconds=3600)

    def _begun(self) -> WeightsView:
        return replace(asks("40", RUN_7), status=self.BEGUN, watched=self.WATCHED)

    def test_one_worker_compares_the_files_before_the_version_is_ready(self):
        decision = decided(fleet_of(*self.SERVING, wants=asks("40", RUN_7), status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert decision.worker_calls[0].digest is None
        assert verdicts(decision) == ("RollingOut", None)
        ready = condition_of(decision.fleet.conditions, ConditionType.READY)
        assert ready is not None
        assert ready.status == "False"

    @pytest.mark.parametrize(("seconds", "is_ready"), [(5.0, True), (90.0, False)])
    def test_the_version_is_ready_when_a_worker_has_found_the_same_since_the_comparison_began(
        self, seconds: float, is_ready: bool
    ):
        workers = [self.SERVING[0].compared("40", seconds), *self.SERVING[1:]]
        decision = decided(fleet_of(*workers, wants=self._begun(), status=self.STATUS))

        assert (verdicts(decision)[0] == "AllWorkersServing") == is_ready
        assert texts_of(decision.worker_calls) == ([] if is_ready else ["compare 40 on policy-0"])
        assert decision.weights["wv-2"].files_unread == (not is_ready)

    @pytest.mark.parametrize("reason", [Reason.VERSION_REUSED, Reason.DIGEST_MISMATCH])
    def test_other_files_are_reported_and_asked_for_again_at_one_worker_only(self, reason: Reason):
        wants = replace(asks("40", RUN_7), status=self.BEGUN)
        resting = self.SERVING[1].refused("40", reason, age_seconds=1)
        due = self.SERVING[1].refused("40", reason, age_seconds=30)

        for worker, calls in ((resting, []), (due, ["compare 40 on policy-1"])):
            workers = [self.SERVING[0], worker, self.SERVING[2]]
            decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))
            assert verdicts(decision) == ("VersionReused", "VersionReused")
            assert texts_of(decision.worker_calls) == calls

    @pytest.mark.parametrize("reason", [Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND])
    def test_a_checkpoint_that_the_trainer_has_deleted_counts_as_the_same(self, reason: Reason):
        workers = [self.SERVING[0].refused("40", reason, age_seconds=1), *self.SERVING[1:]]
        decision = decided(fleet_of(*workers, wants=self._begun(), status=self.STATUS))

        assert not decision.worker_calls
        assert verdicts(decision) == ("AllWorkersServing", None)

    def test_files_of_an_abandoned_version_are_not_compared(self):
        halted = self.BEGUN.model_copy(update={"phase": RolloutPhase.HALTED})
        wants = replace(asks("40", RUN_7), status=halted)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert not decision.worker_calls
        assert decision.weights["wv-2"].phase is RolloutPhase.HALTED

    def test_a_digest_in_the_spec_needs_no_comparison(self):
        wants = asks("40", RUN_7, digest=D1)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert not decision.worker_calls
        assert verdicts(decision) == ("AllWorkersServing", None)

    @pytest.mark.parametrize("begun", [True, False])
    def test_a_digest_that_the_trainer_takes_back_before_all_serve_it_counts_for_nothing(
        self, begun: bool
    ):
        named = replace(asks("40", RUN_7, digest=D1), watched=self.WATCHED)
        named = replace(named, status=self.BEGUN) if begun else named
        behind = has(make_worker(2).serving("39"), "/weights/run-7/step_39", D2)
        with_it = decided(fleet_of(*self.SERVING[:2], behind, wants=named, status=self.STATUS))
        assert with_it.weights["wv-2"].phase is not RolloutPhase.APPLIED
        wants = replace(asks("40", RUN_7), status=with_it.weights["wv-2"])
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]

    def test_a_version_that_was_applied_for_this_object_is_no_longer_compared(self):
        applied = WeightsStatus(
            observed_generation=1,
            desired_version="40",
            phase=RolloutPhase.APPLIED,
            started_at=NOW - timedelta(minutes=1),
        )
        wants = replace(asks("40", RUN_7), status=applied)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert not decision.worker_calls

    def _published_again(self, phase: RolloutPhase) -> WeightsView:
        """The client has written a mark since the last look, which was in this phase."""
        update = {"phase": phase, "files_unread": phase is RolloutPhase.COMPARING}
        before = self.BEGUN.model_copy(update=update)
        return replace(asks("40", RUN_7), status=before, watched=self.WATCHED, retry="again")

    def test_an_applied_version_that_is_published_again_is_compared(self):
        wants = self._published_again(RolloutPhase.APPLIED)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert verdicts(decision) == ("RollingOut", None)
        assert decision.weights["wv-2"].files_unread
        assert decision.weights["wv-2"].retried == "again"

    def test_so_is_one_that_all_workers_had_before_another_one_joined(self):
        before = self.BEGUN.model_copy(
            update={
                "phase": RolloutPhase.LOADING,
                "files_unread": False,
                "applied": self.STATUS.applied,
            }
        )
        wants = replace(asks("40", RUN_7), status=before, watched=self.WATCHED, retry="again")
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert decision.weights["wv-2"].files_unread

    def test_a_comparison_from_before_the_version_was_published_again_does_not_count(self):
        workers = [self.SERVING[0].compared("40", 5), *self.SERVING[1:]]
        wants = self._published_again(RolloutPhase.COMPARING)
        decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert verdicts(decision) == ("RollingOut", None)

    def test_a_weight_version_that_steered_no_fleet_before_is_compared(self):
        waited = WeightsStatus(
            observed_generation=1, desired_version="40", phase=RolloutPhase.PENDING
        )
        wants = replace(asks("40", RUN_7), status=waited)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]

    def test_workers_that_did_not_answer_at_first_change_nothing(self):
        begun = self.BEGUN.model_copy(update={"phase": RolloutPhase.STAGING})
        wants = replace(asks("40", RUN_7), status=begun)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]

    @pytest.mark.parametrize("reads", ["stage 40", "compare 40"])
    def test_a_comparison_waits_for_a_lost_read_of_another_worker_if_reads_are_bounded(
        self, reads: str
    ):
        lost = self.SERVING[1].silent(2).without_answer_to(reads)
        workers = [self.SERVING[0], lost, self.SERVING[2]]
        for settings, calls in (({}, ["compare 40 on policy-0"]), ({"maxStaging": 1}, [])):
            observed = fleet_of(
                *workers, wants=asks("40", RUN_7), status=self.STATUS, rollout=settings
            )
            assert texts_of(decided(observed).worker_calls) == calls

    def test_a_comparison_waits_until_no_other_worker_reads_the_same_if_reads_are_bounded(self):
        reading = self.SERVING[1].doing("stage", "40")
        workers = [self.SERVING[0], reading, self.SERVING[2]]
        for settings, calls in (({}, ["compare 40 on policy-0"]), ({"maxStaging": 1}, [])):
            observed = fleet_of(
                *workers, wants=asks("40", RUN_7), status=self.STATUS, rollout=settings
            )
            assert texts_of(decided(observed).worker_calls) == calls

    def test_files_that_were_gone_before_the_comparison_began_are_read_again(self):
        absent, new_leader = Reason.SOURCE_NOT_FOUND, Watched(phase_seconds=1, attempt_seconds=1)
        wants = replace(self._begun(), watched=new_leader)
        for age_seconds, calls in ((5, []), (30, ["compare 40 on policy-1"])):
            refused = self.SERVING[1].refused("40", absent, age_seconds=age_seconds)
            workers = [self.SERVING[0], refused, self.SERVING[2]]
            decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))
            assert verdicts(decision) == ("RollingOut", None)
            assert texts_of(decision.worker_calls) == calls

    @pytest.mark.parametrize("fields", [{"source": {"path": RUN_8}}, {"digest": D2}])
    def test_a_version_that_named_other_files_first_is_compared_when_it_names_its_own(
        self, fields: dict[str, Any]
    ):
        """Its WeightVersion began with an error, and the files were written over before."""
        first = asks("40", RUN_7, **fields)
        refused = decided(fleet_of(*self.SERVING, wants=first, status=self.STATUS))
        assert verdicts(refused)[1] == "VersionReused"
        wants = replace(asks("40", RUN_7), status=refused.weights["wv-2"])
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert verdicts(decision) == ("RollingOut", None)

    def test_a_comparison_of_before_does_not_count_after_the_version_named_other_files(self):
        workers = [self.SERVING[0].compared("40", 30), *self.SERVING[1:]]
        first = replace(
            asks("40", RUN_8), status=self.BEGUN.model_copy(update={"files_unread": False})
        )
        refused = decided(fleet_of(*workers, wants=first, status=self.STATUS))
        wants = replace(asks("40", RUN_7), status=refused.weights["wv-2"], watched=self.WATCHED)
        decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]

    def test_a_suspended_rollout_that_has_not_ended_is_not_compared(self):
        """It would be called without an end, since the phase is not Comparing."""
        behind = has(make_worker(2).serving("39"), "/weights/run-7/step_39", D2)
        wants = replace(asks("40", RUN_7, suspend=True), status=self.BEGUN)
        observed = fleet_of(
            *self.SERVING[:2],
            behind,
            wants=wants,
            status=self.STATUS,
            rollout={"strategy": "InFlight"},
        )
        decision = decided(observed)

        assert decision.weights["wv-2"].phase is RolloutPhase.SUSPENDED
        assert decision.weights["wv-2"].files_unread
        assert not decision.worker_calls

    def test_a_comparison_and_the_stage_of_a_joining_worker_share_the_places_of_max_staging(self):
        joining = has(make_worker(2).joining("39"), "/weights/run-7/step_39", D2)
        workers = [*self.SERVING[:2], joining]
        given = {"status": self.STATUS, "rollout": {"maxStaging": 1}}
        decision = decided(fleet_of(*workers, wants=asks("40", RUN_7), **given))
        assert texts_of(decision.worker_calls) == ["stage 40 on policy-2"]

        workers[0] = workers[0].asked_to("compare 40")
        decision = decided(fleet_of(*workers, wants=self._begun(), **given))
        assert "stage 40 on policy-2" not in texts_of(decision.worker_calls)

    def test_a_store_without_an_answer_is_reported_after_the_timeout(self):
        begun = self.BEGUN.model_copy(update={"started_at": NOW - timedelta(hours=2)})
        watched = Watched(phase_seconds=7200.0, attempt_seconds=7200.0)
        wants = replace(asks("40", RUN_7), status=begun, watched=watched)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert verdicts(decision)[1] == "DeadlineExceeded"
