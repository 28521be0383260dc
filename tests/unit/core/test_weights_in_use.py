"""The status answers users' questions: which versions serve where, since when, and which files are needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.builders import (
    A_DIGEST,
    ANOTHER_DIGEST,
    NOW,
    WorkerBuilder,
    applied_status,
    history_of,
    make_fleet,
    make_weights,
    make_worker,
    path_of,
)
from tests.support.present import present
from tests.unit.core.test_fleet_status import status_of

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.weights_status import weights_status
from fleet_worker.protocol import Source
from rlfleet_resources.fleet_status import (
    MAX_SOURCES_IN_USE,
    MAX_VERSIONS,
    AppliedWeights,
    FleetStatus,
    PinnedWeights,
    SourceInUse,
)
from rlfleet_resources.source import HuggingFaceSource, WeightSource
from rlfleet_resources.weights_status import WeightsStatus

BEFORE = NOW - timedelta(minutes=5)


def holds(worker: WorkerBuilder, digest: str | None, run: str | None = None) -> WorkerBuilder:
    return worker.reporting(digest=digest, run_id=run)


def versions(*workers: WorkerBuilder) -> list[tuple[str, str | None, str | None, int]]:
    found = status_of(make_fleet(*workers)).versions
    return [(v.version, v.run_id, v.digest, v.workers) for v in found]


class TestVersions:
    def test_the_most_frequent_version_comes_first(self):
        workers = [make_worker(0).serving("41"), *(make_worker(n).serving("42") for n in (1, 2))]

        assert versions(*workers) == [("42", None, None, 2), ("41", None, None, 1)]

    def test_versions_differ_by_run_and_digest(self):
        workers = [
            holds(make_worker(0).serving("41"), A_DIGEST, "a"),
            holds(make_worker(1).serving("41"), ANOTHER_DIGEST, "a"),
            holds(make_worker(2).serving("41"), A_DIGEST, "b"),
        ]

        assert versions(*workers) == [
            ("41", "a", A_DIGEST, 1),
            ("41", "a", ANOTHER_DIGEST, 1),
            ("41", "b", A_DIGEST, 1),
        ]

    def test_an_unknown_digest_counts_with_the_known_one(self):
        workers = [holds(make_worker(n).serving("41"), d) for n, d in enumerate((A_DIGEST, None))]

        assert versions(*workers) == [("41", None, A_DIGEST, 2)]

    def test_a_paused_worker_counts_and_one_behind_a_closed_latch_does_not(self):
        workers = [
            make_worker(0).paused("41"),
            make_worker(1).joining("41"),
            make_worker(2).serving("41").silent(30).unready(),
            make_worker(3).starting(),
        ]

        assert versions(*workers) == [("41", None, None, 1)]

    def test_the_number_of_entries_is_bounded(self):
        workers = [make_worker(n).serving(f"v{n}") for n in range(MAX_VERSIONS + 5)]

        assert len(versions(*workers)) == MAX_VERSIONS


class TestAppliedAt:
    def fleet(self, *workers: WorkerBuilder, applied: AppliedWeights | None) -> FleetObserved:
        return make_fleet(*workers, wants="42", status=FleetStatus(applied=applied))

    def record(self, version: str, at: object = BEFORE) -> AppliedWeights:
        source = WeightSource(path=path_of(version))
        return AppliedWeights.model_validate(
            {"version": version, "source": source, "applied_at": at}
        )

    def test_applied_at_is_the_time_when_all_workers_were_first_seen_to_serve(self):
        workers = [make_worker(n).serving("42") for n in range(2)]
        found = present(status_of(self.fleet(*workers, applied=self.record("41"))).applied)

        assert (found.version, found.applied_at) == ("42", NOW)

    def test_applied_at_is_kept_when_the_digest_becomes_known(self):
        workers = [holds(make_worker(n).serving("42"), A_DIGEST) for n in range(2)]
        found = present(status_of(self.fleet(*workers, applied=self.record("42"))).applied)

        assert found.applied_at == BEFORE

    def test_applied_at_is_kept_during_the_rollout_of_another_version(self):
        workers = [make_worker(0).paused("41"), make_worker(1).serving("41")]
        found = present(status_of(self.fleet(*workers, applied=self.record("41"))).applied)

        assert (found.version, found.applied_at) == ("41", BEFORE)

    def test_a_version_that_no_worker_served_was_not_applied(self):
        found = present(status_of(self.fleet(make_worker(0).starting(), applied=None)).applied)

        assert (found.version, found.applied_at) == ("base", None)

    def test_the_weightversion_has_it(self):
        workers = [make_worker(n).serving("42") for n in range(2)]
        fleet = self.fleet(*workers, applied=self.record("41"))
        assert fleet.base_weights is not None
        plan = plan_rollout(fleet, now=NOW)
        given = {"fleet": FleetStatus(), "now": NOW}
        found = present(weights_status(fleet, fleet.base_weights, plan, **given).applied)

        assert found.applied_at == NOW


def used(fleet: FleetObserved) -> dict[str, str]:
    """Source → version."""
    return {str(s.source): s.version for s in status_of(fleet).sources_in_use}


def with_last_sources(fleet: FleetObserved, *listed: str) -> FleetObserved:
    """The fleet with these sources in its last status."""
    sources = [SourceInUse(version=v, source=WeightSource(path=path_of(v))) for v in listed]
    status = fleet.status.model_copy(update={"sources_in_use": tuple(sources)})
    return replace(fleet, status=status)


class TestSourcesInUse:
    def test_the_source_of_a_restarted_worker_is_listed(self):
        assert used(make_fleet(replicas=0)) == {"/models/base": "base"}

    def test_sources_that_workers_serve_stage_or_need_are_listed(self):
        workers = [
            make_worker(0).serving("41").staged("42"),
            make_worker(1).serving("40"),
            make_worker(2).joining("39"),
        ]
        applied = AppliedWeights(version="41", source=WeightSource(path="/weights/step_41"))
        fleet = make_fleet(*workers, wants="43", status=FleetStatus(applied=applied))

        assert used(fleet) == {
            "/models/base": "base",
            **{f"/weights/step_{v}": v for v in ("39", "40", "41", "42", "43")},
        }

    def test_sources_for_a_rollback_are_listed(self):
        pins = [
            PinnedWeights(
                version=v, digest=A_DIGEST, source=WeightSource(path=f"/weights/step_{v}")
            )
            for v in ("42", "41", "40")
        ]
        applied = AppliedWeights(version="42", source=WeightSource(path="/weights/step_42"))
        status = applied_status("42", history=history_of("42", "41", "40"))
        fleet = make_fleet(
            make_worker(0).serving("42"),
            wants=make_weights("42", status=status),
            status=FleetStatus(applied=applied, pinned=tuple(pins)),
        )

        assert set(used(fleet)) == {"/models/base", "/weights/step_42", "/weights/step_41"}

    def test_sources_of_adapters_for_joining_workers_are_listed(self):
        adapter = WeightsSpec.model_validate(
            {
                "fleetRef": {"name": "policy"},
                "adapter": "math",
                "version": "8",
                "source": {"path": "/weights/math_{version}"},
            }
        )
        recorded = AppliedWeights(version="7", source=WeightSource(path="/weights/math_7"))
        view = make_weights("8", name="math", uid="wv-2", spec=adapter)
        fleet = make_fleet(
            make_worker(0).serving("base"),
            wants=[replace(view, status=WeightsStatus(applied=recorded))],
            adapters={"max": 1},
        )

        assert set(used(fleet)) == {"/models/base", "/weights/math_7", "/weights/math_8"}

    @pytest.mark.parametrize(
        "reader",
        [
            pytest.param(make_worker().serving("42").doing("stage", "40"), id="stages it"),
            pytest.param(
                make_worker().serving("42").asked_to("stage 40"), id="is asked to stage it"
            ),
            pytest.param(make_worker().starting(), id="starts"),
            pytest.param(make_worker(), id="has not answered yet"),
            pytest.param(make_worker().serving("42").silent(), id="is silent"),
        ],
    )
    def test_a_source_stays_listed_while_a_worker_may_still_read_it(self, reader):
        """The trainer has ended a rollback to 40: nothing wants 40 any more."""
        assert "/weights/step_40" in used(with_last_sources(make_fleet(reader, wants="42"), "40"))

    @pytest.mark.parametrize(
        "other",
        [
            make_worker().serving("42"),
            make_worker().serving("42").doing("stage", "41"),
            make_worker().not_running(),
        ],
    )
    def test_a_source_leaves_the_list_when_no_worker_may_read_it(self, other):
        assert "/weights/step_40" not in used(
            with_last_sources(make_fleet(other, wants="42"), "40")
        )

    def test_a_repository_is_listed_with_its_revision(self):
        repo = Source.model_validate({"huggingFace": {"repo": "org/m", "revision": "abc"}})
        fleet = make_fleet(make_worker(0).serving("41").reporting(source=repo))
        found = [s.source for s in status_of(fleet).sources_in_use]

        assert WeightSource(hugging_face=HuggingFaceSource(repo="org/m", revision="abc")) in found

    @pytest.mark.parametrize("odd", ["relative/path", "/"])
    def test_an_invalid_source_is_left_out(self, odd):
        fleet = make_fleet(make_worker(0).serving("41").reporting(source=Source(path=odd)))
        status = status_of(replace(fleet, status=FleetStatus(applied=_applied("41"))))

        assert odd not in {str(s.source) for s in status.sources_in_use}

    def test_the_list_is_bounded_and_required_sources_come_first(self):
        workers = [make_worker(n).serving(f"x{n}") for n in range(MAX_SOURCES_IN_USE + 50)]
        found = used(make_fleet(*workers, wants="zzz", status=FleetStatus(applied=_applied("41"))))

        assert len(found) == MAX_SOURCES_IN_USE
        assert {"/models/base", "/weights/step_41", "/weights/step_zzz"} <= set(found)

    def test_the_order_does_not_depend_on_the_workers(self):
        one = make_fleet(make_worker(0).serving("41"), make_worker(1).serving("42"), wants="42")
        two = make_fleet(make_worker(0).serving("42"), make_worker(1).serving("41"), wants="42")

        assert status_of(one).sources_in_use == status_of(two).sources_in_use


def _applied(version: str) -> AppliedWeights:
    return AppliedWeights(version=version, source=WeightSource(path=path_of(version)))
