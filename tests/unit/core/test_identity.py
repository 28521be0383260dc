"""One version of a run means one set of bytes: the operator's reaction when it comes back with others,
and runs that count alike.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_transition,
    make_weights,
    make_worker,
    texts_of,
)
from tests.support.identities import (
    D1,
    D2,
    RUN_7,
    RUN_8,
    asks,
    decided,
    fleet_of,
    has,
    holds,
    pin,
    replaced,
    served,
    verdicts,
)
from tests.support.present import present

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.decision import Decision
from fleet_operator.core.identity import WeightsId, fill_digests, same_weights
from fleet_operator.core.manifests import children
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_worker.protocol import Reason, Source, Staged
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

COMMIT = "a" * 40

SERVING_RUN_7 = [has(make_worker(n).serving("40"), RUN_7, D1, "run-7") for n in range(3)]
AFTER_RUN_7 = served("40", RUN_7, D1, "run-7")


def message_of(decision: Decision) -> str:
    """Of `Stalled` of the fleet."""
    stalled = present(condition_of(decision.fleet.conditions, ConditionType.STALLED))
    return stalled.message


class TestAnotherRunWithTheSameNumber:
    def test_the_version_of_another_run_is_staged_although_its_number_is_equal(self):
        observed = fleet_of(
            *SERVING_RUN_7, wants=asks("40", RUN_8, runID="run-8"), status=AFTER_RUN_7
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == [
            f"stage 40 of run-8 on policy-{n}" for n in range(3)
        ]
        assert verdicts(decision) == ("RollingOut", None)
        assert decision.fleet.applied == AFTER_RUN_7.applied

    def test_the_rollout_is_ready_when_all_serve_it(self):
        workers = [has(make_worker(n).serving("40"), RUN_8, D2, "run-8") for n in range(3)]
        under_way = WeightsStatus(
            observed_generation=1,
            desired_version="40",
            desired_run_id="run-8",
            phase=RolloutPhase.RESUMING,
            started_at=NOW - timedelta(minutes=1),
        )
        wants = replace(asks("40", RUN_8, runID="run-8"), status=under_way)
        decision = decided(fleet_of(*workers, wants=wants, status=AFTER_RUN_7))

        assert verdicts(decision) == ("AllWorkersServing", None)
        assert decision.fleet.applied is not None
        assert (decision.fleet.applied.run_id, decision.fleet.applied.digest) == ("run-8", D2)

    @pytest.mark.parametrize("run", ["run-7", None])
    def test_a_refusal_of_the_other_run_does_not_count_as_a_failure_of_this_one(self, run):
        failed = SERVING_RUN_7[0].refused("40", Reason.CHECKPOINT_NOT_FINITE, age_seconds=1)
        failure = failed.reported["stage_failure"].model_copy(update={"run_id": run})
        workers = [failed.reporting(stage_failure=failure), *SERVING_RUN_7[1:]]
        under_way = WeightsStatus(
            observed_generation=1,
            desired_version="40",
            desired_run_id="run-8",
            phase=RolloutPhase.STAGING,
            started_at=NOW - timedelta(minutes=1),
        )
        wants = replace(asks("40", RUN_8, runID="run-8"), status=under_way)
        decision = decided(fleet_of(*workers, wants=wants, status=AFTER_RUN_7))

        assert texts_of(decision.worker_calls) == [
            f"stage 40 of run-8 on policy-{n}" for n in range(3)
        ]
        assert verdicts(decision)[1] is None


class TestReusedVersion:
    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            pytest.param(RUN_8, {}, id="another source"),
            pytest.param(RUN_8, {"digest": D2}, id="another source and digest"),
            pytest.param(RUN_7, {"digest": D2}, id="a digest added later"),
        ],
    )
    def test_nothing_changes_and_it_is_reported(self, path, fields):
        wants = asks("40", path, runID="run-7", **fields)
        decision = decided(fleet_of(*SERVING_RUN_7, wants=wants, status=AFTER_RUN_7))

        assert texts_of(decision.worker_calls) == []
        assert verdicts(decision) == ("VersionReused", "VersionReused")
        assert decision.fleet.applied == AFTER_RUN_7.applied
        assert decision.fleet.pinned == AFTER_RUN_7.pinned

    def test_a_first_version_with_the_models_name_and_another_source_is_refused(self):
        workers = [has(make_worker(n).serving("0"), "/models/base", D1) for n in range(2)]
        model = {"name": "m", "source": {"path": "/models/base"}, "version": "0"}
        status = served("0", "/models/base", None)
        decision = decided(
            fleet_of(*workers, wants=asks("0", "/weights/sft"), model=model, status=status)
        )

        assert texts_of(decision.worker_calls) == []
        assert verdicts(decision) == ("VersionReused", "VersionReused")
        assert present(decision.fleet.applied).source == WeightSource(path="/models/base")

    def test_a_reused_version_is_refused_before_a_worker_reports_a_digest(self):
        model = {"name": "m", "source": {"path": "/models/base"}, "version": "0"}
        workers = [make_worker(n).starting() for n in range(2)]
        decision = decided(fleet_of(*workers, wants=asks("0", "/weights/sft"), model=model))

        assert verdicts(decision) == ("VersionReused", "VersionReused")
        assert "digest" not in message_of(decision)

    def test_without_a_pin_the_report_names_no_digest(self):
        """Only the memory of a worker knows the files of before."""
        workers = [
            has(make_worker(n).serving("2"), "/weights/2", D1).refused("3", Reason.VERSION_REUSED)
            for n in range(2)
        ]
        began = WeightsStatus(desired_version="3", started_at=NOW - timedelta(seconds=9))
        wants = replace(asks("3", "/weights/3"), status=began)
        status = served("2", "/weights/2", D1)
        decision = decided(fleet_of(*workers, wants=wants, status=status))

        assert verdicts(decision)[1] == "VersionReused"
        assert "digest" not in message_of(decision)


class TestRewrittenFiles:
    APPLIED = WeightsStatus(
        observed_generation=1, desired_version="43", phase=RolloutPhase.APPLIED, started_at=NOW
    )
    WANTS = replace(asks("43", "/weights/current"), status=APPLIED)
    STATUS = served("43", "/weights/current", D1)
    OTHERS = tuple(has(make_worker(n).serving("43"), "/weights/current", D1) for n in range(2))

    def test_a_worker_that_started_on_them_is_not_admitted(self):
        joining_worker = has(make_worker(2).joining("43"), "/weights/current", D2)
        decision = decided(
            fleet_of(*self.OTHERS, joining_worker, wants=self.WANTS, status=self.STATUS)
        )
        (call,) = decision.worker_calls

        assert (call.kind, call.digest) == ("stage", D1)
        assert verdicts(decision)[0] != "AllWorkersServing"

    def test_a_refusal_of_the_pinned_digest_is_a_reused_version(self):
        joining_worker = make_worker(2).joining("base").refused("43", Reason.DIGEST_MISMATCH)
        decision = decided(
            fleet_of(*self.OTHERS, joining_worker, wants=self.WANTS, status=self.STATUS)
        )
        stalled = present(condition_of(decision.fleet.conditions, ConditionType.STALLED))

        assert stalled.reason == "VersionReused"
        assert "111111111111" in stalled.message

    @pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
    def test_a_member_with_other_bytes_is_fenced(self, strategy):
        differing = has(make_worker(2).serving("43"), "/weights/current", D2)
        observed = fleet_of(
            *self.OTHERS,
            differing,
            wants=self.WANTS,
            status=self.STATUS,
            rollout={"strategy": strategy, "maxUnavailable": 1},
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == ["fence on policy-2"]
        assert verdicts(decision)[0] != "AllWorkersServing"

    def test_a_restarted_worker_gets_run_and_digest(self):
        decision = decided(
            fleet_of(*SERVING_RUN_7, wants=asks("40", RUN_7, runID="run-7"), status=AFTER_RUN_7)
        )
        data = children.applied_config_map(make_fleet(), decision.rollout.applied)["data"]

        assert data == {"version": "40", "path": RUN_7, "runID": "run-7", "digest": D1}


def _repository(name: str, revision: str = "main") -> dict[str, Any]:
    return {"huggingFace": {"repo": name, "revision": revision}}


def _staged(source: dict[str, Any], digest: str) -> Staged:
    """Version 1, as a worker reports it."""
    read = Source.model_validate(source)
    return Staged(version="1", source=read, digest=digest, size_bytes=1, in_memory=True)


def _asks_from(source: dict[str, Any]) -> WeightsView:
    """A WeightVersion that requests version 1."""
    given = {"fleetRef": {"name": "policy"}, "version": "1", "source": source}
    return make_weights("1", spec=WeightsSpec.model_validate(given))


class TestPins:
    BASE = pin("base", "/models/base", D1)

    def staged_by_all(self, **worker: Any) -> FleetObserved:
        workers = [
            holds(
                has(make_worker(n).serving("base"), "/models/base", D1),
                "1",
                "/weights/step_1",
                D2,
                None,
            )
            for n in range(2)
        ]
        status = replaced(served("base", "/models/base", D1), (self.BASE,))
        rollout = {"strategy": "InFlight"}
        return fleet_of(*workers, wants="1", status=status, rollout=rollout)

    def staged_from(self, read: dict[str, Any], named: dict[str, Any]) -> FleetObserved:
        """Two workers have staged version 1 from one source, and the spec names another one."""
        workers = [
            has(make_worker(n).serving("base"), "/models/base", D1).reporting(
                staged=_staged(read, D2)
            )
            for n in range(2)
        ]
        status = replaced(served("base", "/models/base", D1), (self.BASE,))
        return fleet_of(*workers, wants=_asks_from(named), status=status)

    def test_the_first_report_is_pinned_before_anything_is_loaded(self):
        observed = self.staged_by_all()
        before = decided(observed)

        assert [p.digest for p in before.fleet.pinned if p.version == "1"] == [D2]
        assert texts_of(before.worker_calls) == []
        assert before.rollout.waits_for_pin

        computed = replace(
            observed,
            status=before.fleet,
            stored=before.fleet.model_copy(update={"pinned": (self.BASE,)}),
        )
        assert texts_of(decided(computed).worker_calls) == []
        stored = replace(computed, stored=before.fleet)
        assert texts_of(decided(stored).worker_calls) == [
            "apply 1 on policy-0",
            "apply 1 on policy-1",
        ]
        assert {c.digest for c in decided(stored).worker_calls} == {D2}

    def test_the_first_of_several_pins_of_a_version_counts_as_stored(self):
        """A fleet that was External has one for each directory."""
        first = decided(self.staged_by_all()).fleet
        (own,) = [p for p in first.pinned if p.version == "1"]
        other = pin("1", RUN_8, D1)
        status = first.model_copy(update={"pinned": (own, other)})
        then = decided(replace(self.staged_by_all(), status=status, stored=status))

        assert texts_of(then.worker_calls) == ["apply 1 on policy-0", "apply 1 on policy-1"]

    @pytest.mark.parametrize(
        ("read", "named"),
        [
            pytest.param({"path": RUN_7}, {"path": RUN_8}, id="another path"),
            pytest.param({"path": RUN_7}, _repository("lab/m"), id="a repository, not a path"),
            pytest.param(_repository("lab/m", COMMIT), {"path": RUN_7}, id="a path"),
            pytest.param(_repository("lab/m", COMMIT), _repository("lab/n"), id="a repository"),
            pytest.param(
                _repository("lab/m", COMMIT), _repository("lab/m", "b" * 40), id="a commit"
            ),
        ],
    )
    def test_a_pin_has_the_source_that_its_digest_comes_from(self, read, named):
        """The spec named another source after the workers had staged the version."""
        observed = self.staged_from(read, named)
        first = decided(observed)
        then = decided(replace(observed, status=first.fleet, stored=first.fleet))
        (pinned,) = [p for p in first.fleet.pinned if p.version == "1"]

        assert (pinned.source, pinned.commit) == (WeightSource.model_validate(read), "")
        assert verdicts(then) == ("VersionReused", "VersionReused")

    @pytest.mark.parametrize(
        ("read", "named"),
        [
            pytest.param(
                _repository("lab/m", COMMIT), _repository("lab/m", COMMIT), id="that commit"
            ),
            pytest.param(
                {"path": "steps/1"}, {"path": RUN_7}, id="a source that cannot be recorded"
            ),
        ],
    )
    def test_otherwise_a_pin_has_the_source_of_the_spec(self, read, named):
        decision = decided(self.staged_from(read, named))
        (pinned,) = [p for p in decision.fleet.pinned if p.version == "1"]

        assert (pinned.source, pinned.commit) == (WeightSource.model_validate(named), "")
        assert verdicts(decision) == ("RollingOut", None)

    def test_a_digest_of_an_unknown_kind_is_not_pinned(self):
        """Workers of another release must not stop the plan."""
        digests = ["blake3:" + "1" * 64, "blake3:" + "1" * 64, D1]
        workers = [has(make_worker(n).serving("40"), RUN_7, d) for n, d in enumerate(digests)]
        status = replaced(served("40", RUN_7, None), ())
        for management in ("Operator", "External"):
            weights = {"roots": ["/weights"], "management": management}
            decision = decided(fleet_of(*workers, weights=weights, status=status))

            assert decision.defects == ()
            assert D1 in [p.digest for p in decision.fleet.pinned]

    def test_a_moving_revision_is_pinned_to_the_first_commit(self):
        staged = _staged(_repository("lab/m", "c0ffee"), D2)
        held = has(make_worker(0).serving("base"), "/models/base", D1).reporting(staged=staged)
        other = has(make_worker(1).serving("base"), "/models/base", D1)
        decision = decided(fleet_of(held, other, wants=_asks_from(_repository("lab/m"))))

        assert [p.commit for p in decision.fleet.pinned if p.version == "1"] == ["c0ffee"]
        (call,) = decision.worker_calls
        assert (call.kind, call.pod_name, call.digest) == ("stage", "policy-1", D2)
        assert call.source.key().revision == "c0ffee"

    def test_a_pin_has_the_commit_of_its_digest(self):
        """The branch moved between the caches of the workers."""

        def read(ordinal: int, digest: str, commit: str) -> WorkerBuilder:
            base = has(make_worker(ordinal).serving("base"), "/models/base", D1)
            return base.reporting(staged=_staged(_repository("lab/m", commit), digest))

        workers = [read(0, D2, "b" * 40), read(1, D1, "a" * 40), read(2, D1, "a" * 40)]
        wants = _asks_from(_repository("lab/m"))
        pinned = decided(fleet_of(*workers, wants=wants)).fleet.pinned

        assert [(p.digest, p.commit) for p in pinned if p.version == "1"] == [(D1, "a" * 40)]


class TestOrder:
    """Weights that the fleet goes back to are newer than those that it served until then."""

    PINS = tuple(pin(v, f"/weights/{v}", D1) for v in ("4", "3", "2", "1"))

    def after(self, version: str, *, before: str) -> list[str]:
        """The pins when the fleet has gone from one version to another, and 4 is staged."""
        status = replaced(served(before, f"/weights/{before}", D1), self.PINS)
        source = WeightSource(path=f"/weights/{version}")
        moves = make_transition(version, before, source=source, digest=D1)
        status = status.model_copy(update={"transition": moves})
        workers = [has(make_worker(n).serving(version), f"/weights/{version}", D1) for n in (0, 1)]
        observed = fleet_of(*workers, wants=asks(version, f"/weights/{version}"), status=status)
        return [p.version for p in decided(observed).fleet.pinned]

    def test_a_step_back_moves_its_pin_before_that_of_the_version_before(self):
        assert self.after("1", before="3") == ["4", "1", "3", "2"]

    @pytest.mark.parametrize(("version", "before"), [("3", "2"), ("3", "3")])
    def test_a_step_forward_changes_no_order(self, version, before):
        assert self.after(version, before=before) == ["4", "3", "2", "1"]


class TestComparison:
    def test_versions_of_two_runs_are_different(self):
        assert not same_weights(WeightsId("3", "run-7"), WeightsId("3", "run-8"))
        assert not same_weights(WeightsId("3", None), WeightsId("3", "run-8"))

    def test_digests_are_compared_where_both_are_known(self):
        assert not same_weights(WeightsId("3", None, D1), WeightsId("3", None, D2))
        assert same_weights(WeightsId("3", None, D1), WeightsId("3"))

    def test_a_missing_digest_is_filled_in_if_only_one_fits(self):
        gap, one, two = WeightsId("3"), WeightsId("3", None, D1), WeightsId("3", None, D2)

        assert fill_digests([gap, one]) == [one, one]
        assert fill_digests([gap, one, two]) == [gap, one, two]
        assert fill_digests([None, gap]) == [None, gap]
