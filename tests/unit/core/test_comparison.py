"""The files of a version that the fleet serves already are compared for its new WeightVersion."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_worker, texts_of
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

from fleet_operator.core.decision import Decision
from fleet_operator.core.observed import Watched, WeightsView
from fleet_worker.protocol import Reason
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

COMPARED = ["compare 40 on policy-0"]


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

    def _decided(self, wants: WeightsView, *workers: WorkerBuilder, **spec: Any) -> Decision:
        serving = workers or self.SERVING
        return decided(fleet_of(*serving, wants=wants, status=self.STATUS, **spec))

    @pytest.mark.parametrize(
        ("before", "retry"),
        [
            pytest.param({"phase": RolloutPhase.APPLIED}, "again", id="published again"),
            pytest.param(
                {"phase": RolloutPhase.LOADING, "applied": STATUS.applied},
                "again",
                id="published again after another worker joined",
            ),
            pytest.param({"phase": RolloutPhase.PENDING, "started_at": None}, "", id="new here"),
            pytest.param(
                {"phase": RolloutPhase.STAGING, "files_unread": True},
                "",
                id="begun while workers did not answer",
            ),
        ],
    )
    def test_a_version_whose_files_may_be_others_is_compared(self, before, retry):
        update = {"files_unread": False} | before
        wants = replace(self._begun(), status=self.BEGUN.model_copy(update=update), retry=retry)
        decision = self._decided(wants)

        assert texts_of(decision.worker_calls) == COMPARED
        assert verdicts(decision) == ("RollingOut", None)
        assert decision.weights["wv-2"].files_unread
        assert decision.weights["wv-2"].retried == retry

    @pytest.mark.parametrize(
        ("phase", "digest", "is_ready"),
        [
            pytest.param(RolloutPhase.HALTED, None, False, id="it was abandoned"),
            pytest.param(RolloutPhase.APPLIED, None, True, id="it was applied for this object"),
            pytest.param(None, D1, True, id="the spec has its digest"),
        ],
    )
    def test_a_version_is_not_compared_otherwise(self, phase, digest, is_ready):
        wants = asks("40", RUN_7, **({"digest": digest} if digest else {}))
        if phase:
            update = {"phase": phase, "files_unread": phase is RolloutPhase.HALTED}
            wants = replace(wants, status=self.BEGUN.model_copy(update=update))
        decision = self._decided(wants)

        assert not decision.worker_calls
        assert (verdicts(decision) == ("AllWorkersServing", None)) is is_ready

    @pytest.mark.parametrize(("seconds", "is_ready"), [(5.0, True), (90.0, False)])
    def test_the_version_is_ready_when_a_worker_has_found_the_same_since_the_comparison_began(
        self, seconds, is_ready
    ):
        workers = [self.SERVING[0].compared("40", seconds), *self.SERVING[1:]]
        decision = self._decided(self._begun(), *workers)

        assert (verdicts(decision)[0] == "AllWorkersServing") == is_ready
        assert texts_of(decision.worker_calls) == ([] if is_ready else COMPARED)
        assert decision.weights["wv-2"].files_unread == (not is_ready)

    @pytest.mark.parametrize("reason", [Reason.VERSION_REUSED, Reason.DIGEST_MISMATCH])
    def test_other_files_are_reported_and_asked_for_again_at_one_worker_only(self, reason):
        wants = replace(asks("40", RUN_7), status=self.BEGUN)
        resting = self.SERVING[1].refused("40", reason, age_seconds=1)
        due = self.SERVING[1].refused("40", reason, age_seconds=30)

        for worker, calls in ((resting, []), (due, ["compare 40 on policy-1"])):
            workers = [self.SERVING[0], worker, self.SERVING[2]]
            decision = self._decided(wants, *workers)
            assert verdicts(decision) == ("VersionReused", "VersionReused")
            assert texts_of(decision.worker_calls) == calls

    @pytest.mark.parametrize("reason", [Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND])
    def test_a_checkpoint_that_the_trainer_has_deleted_counts_as_the_same(self, reason):
        workers = [self.SERVING[0].refused("40", reason, age_seconds=1), *self.SERVING[1:]]
        decision = self._decided(self._begun(), *workers)

        assert not decision.worker_calls
        assert verdicts(decision) == ("AllWorkersServing", None)

    @pytest.mark.parametrize("begun", [True, False])
    def test_a_digest_that_the_trainer_takes_back_before_all_serve_it_counts_for_nothing(
        self, begun
    ):
        named = replace(asks("40", RUN_7, digest=D1), watched=self.WATCHED)
        named = replace(named, status=self.BEGUN) if begun else named
        behind = has(make_worker(2).serving("39"), "/weights/run-7/step_39", D2)
        with_it = self._decided(named, *self.SERVING[:2], behind)
        assert with_it.weights["wv-2"].phase is not RolloutPhase.APPLIED
        wants = replace(asks("40", RUN_7), status=with_it.weights["wv-2"])
        decision = self._decided(wants)

        assert texts_of(decision.worker_calls) == COMPARED

    def _published_again(self, phase: RolloutPhase) -> WeightsView:
        """The client has written a mark since the last look, which was in this phase."""
        update = {"phase": phase, "files_unread": phase is RolloutPhase.COMPARING}
        before = self.BEGUN.model_copy(update=update)
        return replace(asks("40", RUN_7), status=before, watched=self.WATCHED, retry="again")

    def test_a_comparison_from_before_the_version_was_published_again_does_not_count(self):
        workers = [self.SERVING[0].compared("40", 5), *self.SERVING[1:]]
        wants = self._published_again(RolloutPhase.COMPARING)
        decision = self._decided(wants, *workers)

        assert texts_of(decision.worker_calls) == COMPARED
        assert verdicts(decision) == ("RollingOut", None)

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(SERVING[1].doing("stage", "40"), id="it reads the same"),
            pytest.param(SERVING[1].silent(2).without_answer_to("stage 40"), id="it may read"),
            pytest.param(SERVING[1].silent(2).without_answer_to("compare 40"), id="or compare"),
        ],
    )
    def test_a_comparison_waits_for_the_read_of_another_worker_if_reads_are_bounded(self, other):
        workers = [self.SERVING[0], other, self.SERVING[2]]
        for settings, calls in (({}, COMPARED), ({"maxStaging": 1}, [])):
            decision = self._decided(asks("40", RUN_7), *workers, rollout=settings)
            assert texts_of(decision.worker_calls) == calls

    def test_files_that_were_gone_before_the_comparison_began_are_read_again(self):
        absent, new_leader = Reason.SOURCE_NOT_FOUND, Watched(phase_seconds=1, attempt_seconds=1)
        wants = replace(self._begun(), watched=new_leader)
        for age_seconds, calls in ((5, []), (30, ["compare 40 on policy-1"])):
            refused = self.SERVING[1].refused("40", absent, age_seconds=age_seconds)
            workers = [self.SERVING[0], refused, self.SERVING[2]]
            decision = self._decided(wants, *workers)
            assert verdicts(decision) == ("RollingOut", None)
            assert texts_of(decision.worker_calls) == calls

    @pytest.mark.parametrize("fields", [{"source": {"path": RUN_8}}, {"digest": D2}])
    def test_a_version_that_named_other_files_first_is_compared_when_it_names_its_own(self, fields):
        """Its WeightVersion began with an error, and the files were written over before."""
        first = asks("40", RUN_7, **fields)
        refused = self._decided(first)
        assert verdicts(refused)[1] == "VersionReused"
        wants = replace(asks("40", RUN_7), status=refused.weights["wv-2"])
        decision = self._decided(wants)

        assert texts_of(decision.worker_calls) == COMPARED
        assert verdicts(decision) == ("RollingOut", None)

    def test_a_suspended_rollout_that_has_not_ended_is_not_compared(self):
        """It would be called without an end, since the phase is not Comparing."""
        behind = has(make_worker(2).serving("39"), "/weights/run-7/step_39", D2)
        wants = replace(asks("40", RUN_7, suspend=True), status=self.BEGUN)
        swaps = {"strategy": "InFlight"}
        decision = self._decided(wants, *self.SERVING[:2], behind, rollout=swaps)

        assert decision.weights["wv-2"].phase is RolloutPhase.SUSPENDED
        assert decision.weights["wv-2"].files_unread
        assert not decision.worker_calls

    def test_a_comparison_and_the_stage_of_a_joining_worker_share_the_places_of_max_staging(self):
        joining = has(make_worker(2).joining("39"), "/weights/run-7/step_39", D2)
        workers = [*self.SERVING[:2], joining]
        given = {"rollout": {"maxStaging": 1}}
        decision = self._decided(asks("40", RUN_7), *workers, **given)
        assert texts_of(decision.worker_calls) == ["stage 40 on policy-2"]

        workers[0] = workers[0].asked_to("compare 40")
        decision = self._decided(self._begun(), *workers, **given)
        assert "stage 40 on policy-2" not in texts_of(decision.worker_calls)

    def test_a_store_without_an_answer_is_reported_after_the_timeout(self):
        begun = self.BEGUN.model_copy(update={"started_at": NOW - timedelta(hours=2)})
        watched = Watched(phase_seconds=7200.0, attempt_seconds=7200.0)
        wants = replace(asks("40", RUN_7), status=begun, watched=watched)
        decision = self._decided(wants)

        assert verdicts(decision)[1] == "DeadlineExceeded"
