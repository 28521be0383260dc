"""One version of a run means one set of bytes: the operator's reaction when it comes back with others,
and runs that count alike.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from tests.support.builders import NOW, AWorker, make_fleet, make_weights, make_worker, texts_of

from fleet_operator.api.conditions import ConditionType, condition_of
from fleet_operator.api.fleet_status import MAX_PINNED, AppliedWeights, FleetStatus, PinnedWeights
from fleet_operator.api.source import WeightSource
from fleet_operator.api.weights import RolloutPhase, WeightsSpec, WeightsStatus
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.identity import WeightsId, fill_digests, same_weights
from fleet_operator.core.manifests import children
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import FleetObserved, Watched
from fleet_worker.protocol import Reason, Source, Staged

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64
RUN_7, RUN_8 = "/weights/run-7/step_40", "/weights/run-8/step_40"


def has(worker: AWorker, path: str, digest: str | None, run_id: str | None = None) -> AWorker:
    return worker._says(source=Source(path=path), digest=digest, run_id=run_id)


def loaded(worker: AWorker, path: str | None, digest: str | None) -> AWorker:
    """A worker into which a trainer has loaded its version."""
    source = Source(path=path) if path else None
    return worker.changed(None)._says(source=source, digest=digest)


def holds(worker: AWorker, version: str, path: str, digest: str, run: str | None) -> AWorker:
    staged = Staged(
        version=version,
        run_id=run,
        source=Source(path=path),
        digest=digest,
        size_bytes=1,
        in_memory=True,
    )
    return worker._says(staged=staged)


def pin(version: str, path: str, digest: str, run: str | None = None) -> PinnedWeights:
    source = WeightSource(path=path)
    return PinnedWeights(version=version, run_id=run, digest=digest, source=source)


def served(version: str, path: str, digest: str | None, run: str | None = None) -> FleetStatus:
    """The status of a fleet that serves this."""
    source = WeightSource(path=path)
    applied = AppliedWeights(
        version=version, source=source, digest=digest, run_id=run, applied_at=NOW
    )
    pinned = (pin(version, path, digest, run),) if digest else ()
    return FleetStatus(applied=applied, pinned=pinned)


def asks(version: str, path: str, **fields: Any) -> Any:
    given = {"fleetRef": {"name": "policy"}, "version": version, "source": {"path": path}}
    return make_weights(version, uid="wv-2", spec=WeightsSpec.model_validate(given | fields))


def fleet_of(*workers: AWorker, **given: Any) -> FleetObserved:
    spec = {k: v for k, v in given.items() if k not in {"wants", "status"}}
    revision = revision_of(make_fleet(*workers, **spec))
    return make_fleet(*(w.of_revision(revision) for w in workers), **given)


def decided(observed: FleetObserved) -> Decision:
    return decide(observed, default_image="image", now=NOW)


def verdicts(decision: Decision) -> tuple[str, str | None]:
    """Reasons of Ready and of Stalled, by the WeightVersion's account."""
    (status,) = decision.weights.values()
    ready = condition_of(status.conditions, ConditionType.READY)
    stalled = condition_of(status.conditions, ConditionType.STALLED)
    assert ready is not None
    return str(ready.reason), str(stalled.reason) if stalled else None


SERVING_RUN_7 = [has(make_worker(n).serving("40"), RUN_7, D1, "run-7") for n in range(3)]
AFTER_RUN_7 = served("40", RUN_7, D1, "run-7")


class TestAnotherRunWithTheSameNumber:
    def test_it_is_staged_although_the_version_is_equal(self):
        observed = fleet_of(
            *SERVING_RUN_7, wants=asks("40", RUN_8, runID="run-8"), status=AFTER_RUN_7
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == [
            f"stage 40 of run-8 on policy-{n}" for n in range(3)
        ]
        assert verdicts(decision) == ("RollingOut", None)
        assert decision.fleet.applied == AFTER_RUN_7.applied

    def test_a_worker_that_has_it_is_not_admitted_beside_the_old_run(self):
        joining_worker = has(make_worker(2).joining("40"), RUN_8, D2, "run-8")
        wants = asks("40", RUN_8, runID="run-8", digest=D2)
        decision = decided(
            fleet_of(*SERVING_RUN_7[:2], joining_worker, wants=wants, status=AFTER_RUN_7)
        )

        assert "admit" not in {c.kind for c in decision.worker_calls}

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

    def test_a_refusal_of_the_other_run_is_no_failure_of_this_one(self):
        failed = SERVING_RUN_7[0].refused("40", Reason.CHECKPOINT_NOT_FINITE, age_seconds=1)
        failure = failed.said["stage_failure"].model_copy(update={"run_id": "run-7"})
        workers = [failed._says(stage_failure=failure), *SERVING_RUN_7[1:]]
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

    @pytest.mark.parametrize("path", [RUN_7, RUN_8])
    def test_with_the_pinned_digest_it_is_the_same_version(self, path):
        wants = asks("40", path, runID="run-7", digest=D1)
        decision = decided(fleet_of(*SERVING_RUN_7, wants=wants, status=AFTER_RUN_7))

        assert verdicts(decision) == ("AllWorkersServing", None)

    def test_a_first_version_with_the_models_name_and_another_source_is_refused(self):
        workers = [has(make_worker(n).serving("0"), "/models/base", D1) for n in range(2)]
        model = {"name": "m", "source": {"path": "/models/base"}, "version": "0"}
        status = served("0", "/models/base", None)
        decision = decided(
            fleet_of(*workers, wants=asks("0", "/weights/sft"), model=model, status=status)
        )

        assert texts_of(decision.worker_calls) == []
        assert verdicts(decision) == ("VersionReused", "VersionReused")
        assert decision.fleet.applied is not None
        assert decision.fleet.applied.source == WeightSource(path="/models/base")

    def test_it_is_refused_before_a_worker_reports_a_digest(self):
        model = {"name": "m", "source": {"path": "/models/base"}, "version": "0"}
        workers = [make_worker(n).starting() for n in range(2)]
        decision = decided(fleet_of(*workers, wants=asks("0", "/weights/sft"), model=model))

        assert verdicts(decision) == ("VersionReused", "VersionReused")

    def test_with_its_own_run_it_is_loaded(self):
        workers = [has(make_worker(n).serving("base"), "/models/base", D1) for n in range(2)]
        wants = asks("base", "/weights/sft", runID="run-1")
        decision = decided(fleet_of(*workers, wants=wants))

        assert {str(c.work) for c in decision.worker_calls} == {"stage base of run-1"}


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
        stalled = condition_of(decision.fleet.conditions, ConditionType.STALLED)

        assert stalled is not None
        assert stalled.reason == "VersionReused"
        assert "111111111111" in stalled.message

    def test_a_changed_model_directory_admits_no_new_worker(self):
        others = [has(make_worker(n).serving("base"), "/models/base", D1) for n in range(2)]
        joining_worker = has(make_worker(2).joining("base"), "/models/base", D2)
        status = served("base", "/models/base", D1)
        decision = decided(fleet_of(*others, joining_worker, status=status))

        assert texts_of(decision.worker_calls) == ["stage base on policy-2"]
        assert decision.worker_calls[0].digest == D1

    @pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
    def test_a_member_with_other_bytes_is_fenced(self, strategy):
        stray = has(make_worker(2).serving("43"), "/weights/current", D2)
        observed = fleet_of(
            *self.OTHERS,
            stray,
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

    def test_a_pin_has_the_path_that_its_digest_comes_from(self):
        """The spec named another path after the workers had staged the version."""
        workers = [
            holds(
                has(make_worker(n).serving("base"), "/models/base", D1),
                *("1", "/weights/before/step_1", D2, None),
            )
            for n in range(2)
        ]
        status = replaced(served("base", "/models/base", D1), (self.BASE,))
        observed = fleet_of(*workers, wants="1", status=status)
        first = decided(observed)
        then = decided(replace(observed, status=first.fleet, stored=first.fleet))

        sources = [p.source.path for p in first.fleet.pinned if p.version == "1"]
        assert sources == ["/weights/before/step_1"]
        assert verdicts(then) == ("VersionReused", "VersionReused")

    def test_a_serving_worker_counts_more_than_a_staged_one(self):
        one = holds(make_worker(0).joining(None), "base", "/models/base", D2, None)
        two = has(make_worker(1).serving("base"), "/models/base", D1)

        assert [p.digest for p in decided(fleet_of(one, two)).fleet.pinned] == [D1]

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

    def test_the_list_is_bounded_and_keeps_what_is_in_use(self):
        old = tuple(pin(str(n), f"/weights/step_{n}", D1) for n in range(200, 100, -1))
        workers = [has(make_worker(0).serving("base"), "/models/base", D1)]
        status = replaced(FleetStatus(), (*old[:99], self.BASE))
        one = holds(workers[0], "300", "/weights/step_300", D2, None)
        pinned = decided(fleet_of(one, wants="300", status=status)).fleet.pinned

        assert len(pinned) == 100
        assert pinned[0].version == "300"
        assert self.BASE in pinned
        assert "102" not in {p.version for p in pinned}

    def test_a_moving_revision_is_pinned_to_the_first_commit(self):
        repository = {"huggingFace": {"repo": "lab/m", "revision": "main"}}
        found = Source.model_validate({"huggingFace": {"repo": "lab/m", "revision": "c0ffee"}})
        worker = has(make_worker(0).serving("base"), "/models/base", D1)
        held = holds(worker, "1", "/ignored", D2, None)
        staged = held.said["staged"].model_copy(update={"source": found})
        other = has(make_worker(1).serving("base"), "/models/base", D1)
        given = {"fleetRef": {"name": "policy"}, "version": "1", "source": repository}
        wants = make_weights("1", spec=WeightsSpec.model_validate(given))
        decision = decided(fleet_of(held._says(staged=staged), other, wants=wants))

        assert [p.commit for p in decision.fleet.pinned if p.version == "1"] == ["c0ffee"]
        (call,) = decision.worker_calls
        assert (call.kind, call.pod_name, call.digest) == ("stage", "policy-1", D2)
        assert call.source.revision == "c0ffee"


def replaced(status: FleetStatus, pinned: tuple[PinnedWeights, ...]) -> FleetStatus:
    return status.model_copy(update={"pinned": pinned})


class TestBounds:
    def test_the_newest_pins_and_those_in_use_are_kept(self):
        old = tuple(pin(str(n), f"/weights/{n}", D1) for n in range(100, 100 + MAX_PINNED))
        last = old[-1]
        path = str(last.source.path)
        status = replaced(served(last.version, path, D1), old)
        workers = [
            holds(has(make_worker(n).serving(last.version), path, D1), "7", "/weights/7", D2, None)
            for n in range(2)
        ]
        kept = decided(
            fleet_of(*workers, wants=asks("7", "/weights/7"), status=status)
        ).fleet.pinned

        assert len(kept) == MAX_PINNED
        assert [kept[0].version, kept[-1].version] == ["7", last.version]
        assert old[-2] not in kept


class TestExternalFleets:
    WEIGHTS: ClassVar = {"roots": ["/weights"], "management": "External"}

    def external(self, *workers: AWorker) -> Decision:
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
        assert decision.fleet.applied is not None
        assert decision.fleet.applied.digest == D2
        assert [p.digest for p in decision.fleet.pinned] == [D2, D1]

    def test_other_files_from_one_directory_are_reported_and_nothing_changes(self):
        """Processes that have restarted do not remember what the directory held."""
        path = "/weights/run-7/step_3"
        workers = [has(make_worker(n).serving("3"), path, D2) for n in range(3)]
        joining_worker = has(make_worker(3).joining("3"), path, D2)
        decision = self.external(*workers, joining_worker)

        assert texts_of(decision.worker_calls) == []
        assert self.stalled(decision) == "VersionReused"
        assert decision.fleet.applied is not None
        assert decision.fleet.applied.digest == D1
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

    def test_the_models_own_weights_are_no_update(self):
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

        assert len(self.external(*workers).fleet.pinned) == MAX_PINNED

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
        assert decision.rollout is not None
        assert decision.rollout.step.holds_requests

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
        stray = has(make_worker(2).serving("3"), "/weights/run-7/step_3", D1)

        assert texts_of(self.external(*workers, stray).worker_calls) == ["fence on policy-2"]

    def test_weights_received_over_a_collective_are_no_files_of_the_same_version(self):
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
        assert decision.fleet.applied is not None
        assert decision.fleet.applied.source is None

    @pytest.mark.parametrize(
        "start", [pytest.param("3", id="on its directory"), pytest.param("base", id="on the model")]
    )
    def test_a_record_with_a_directory_and_no_digest_is_of_transferred_weights(self, start):
        """Earlier releases named the directory of the version before."""
        status = served("3", "/weights/step_2", None)
        workers = [has(make_worker(n).joining(start), "/weights/step_2", D1) for n in range(3)]
        decision = decided(fleet_of(*workers, weights=self.WEIGHTS, status=status))

        assert texts_of(decision.worker_calls) == []
        assert self.stalled(decision) == "SourceUnknown"
        assert decision.fleet.applied is not None
        assert decision.fleet.applied.source is None

    def test_received_weights_and_files_of_one_name_are_two_versions(self):
        """No worker is admitted next to the other kind, and the fleet is not Ready with both."""
        status = replaced(served("3", "/weights/step_3", D1), ())
        workers = [make_worker(n).serving("3").from_source(None) for n in range(2)]
        workers += [has(make_worker(2).serving("3"), "/weights/step_3", D1)]
        decision = decided(fleet_of(*workers, weights=self.WEIGHTS, status=status))

        assert texts_of(decision.worker_calls) == ["fence on policy-2"]
        ready = condition_of(decision.fleet.conditions, ConditionType.READY)
        assert ready is not None
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
        stalled = condition_of(decision.fleet.conditions, ConditionType.STALLED)
        assert stalled is not None
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

    def test_no_canary_is_asked_to_read_them(self):
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

    def test_one_worker_compares_them_before_the_version_is_ready(self):
        decision = decided(fleet_of(*self.SERVING, wants=asks("40", RUN_7), status=self.STATUS))

        assert texts_of(decision.worker_calls) == ["compare 40 on policy-0"]
        assert decision.worker_calls[0].digest is None
        assert verdicts(decision) == ("RollingOut", None)
        ready = condition_of(decision.fleet.conditions, ConditionType.READY)
        assert ready is not None
        assert ready.status == "False"

    @pytest.mark.parametrize(("seconds", "is_ready"), [(5.0, True), (90.0, False)])
    def test_the_version_is_ready_when_a_worker_has_found_the_same_in_this_attempt(
        self,
        seconds: float,
        is_ready: bool,  # noqa: FBT001 - a parameter of the table
    ):
        wants = replace(asks("40", RUN_7), status=self.BEGUN)
        workers = [self.SERVING[0].compared("40", seconds), *self.SERVING[1:]]
        decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))

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
        wants = replace(asks("40", RUN_7), status=self.BEGUN)
        workers = [self.SERVING[0].refused("40", reason, age_seconds=1), *self.SERVING[1:]]
        decision = decided(fleet_of(*workers, wants=wants, status=self.STATUS))

        assert not decision.worker_calls
        assert verdicts(decision) == ("AllWorkersServing", None)

    def test_a_digest_in_the_spec_needs_no_comparison(self):
        wants = asks("40", RUN_7, digest=D1)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert not decision.worker_calls
        assert verdicts(decision) == ("AllWorkersServing", None)

    def test_a_version_that_was_applied_for_this_object_is_compared_no_more(self):
        applied = WeightsStatus(
            observed_generation=1,
            desired_version="40",
            phase=RolloutPhase.APPLIED,
            started_at=NOW - timedelta(minutes=1),
        )
        wants = replace(asks("40", RUN_7), status=applied)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert not decision.worker_calls

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

    def test_it_waits_until_no_other_worker_reads_if_that_is_bounded(self):
        reading = self.SERVING[1].doing("stage", "41")
        workers = [self.SERVING[0], reading, self.SERVING[2]]
        for settings, calls in (({}, ["compare 40 on policy-0"]), ({"maxStaging": 1}, [])):
            observed = fleet_of(
                *workers, wants=asks("40", RUN_7), status=self.STATUS, rollout=settings
            )
            assert texts_of(decided(observed).worker_calls) == calls

    def test_a_store_without_an_answer_is_reported_after_the_timeout(self):
        begun = self.BEGUN.model_copy(update={"started_at": NOW - timedelta(hours=2)})
        watched = Watched(phase_seconds=7200.0, attempt_seconds=7200.0)
        wants = replace(asks("40", RUN_7), status=begun, watched=watched)
        decision = decided(fleet_of(*self.SERVING, wants=wants, status=self.STATUS))

        assert verdicts(decision)[1] == "DeadlineExceeded"
