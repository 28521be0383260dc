"""Adapters are named by run, version and digest, too: what is pinned, refused, and never admitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import (
    NOW,
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
    texts_of,
)

from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.events import is_urgent
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import FleetObserved
from fleet_worker.protocol import (
    AdapterFailure,
    AdapterSlots,
    AdapterState,
    HuggingFaceSource,
    Reason,
    Source,
    Staged,
)
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import (
    MAX_PINNED_ADAPTERS,
    DroppedPins,
    DroppedRun,
    FleetStatus,
    PinnedAdapter,
)
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import WeightsStatus

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PATH = "/weights/sql/step_7"
SLOTS = AdapterSlots(total=3, used=1, max_rank=16)
BASE = {"applied": {"version": "base", "source": {"path": "/models/base"}}}


def pin(version: str, digest: str, *, path: str = PATH, run: str | None = None, commit: str = ""):
    source = WeightSource(path=path)
    return PinnedAdapter(
        adapter="sql", version=version, run_id=run, digest=digest, source=source, commit=commit
    )


def asks(version: str = "7", *, applied: str | None = None, path: str = PATH, **fields: Any):
    given = {"fleetRef": {"name": "policy"}, "version": version, "adapter": "sql"}
    spec = WeightsSpec.model_validate(given | {"source": {"path": path}} | fields)
    status = {"applied": {"version": applied, "source": {"path": PATH}}} if applied else {}
    if applied:  # it has steered the fleet before, so its files are compared already
        status |= {"desiredVersion": version, "startedAt": NOW}
    made = make_weights(version, name="sql", uid="sql", spec=spec)
    return replace(made, status=WeightsStatus.model_validate(status))


def has(
    worker: WorkerBuilder, digest: str | None, *, version: str = "7", staged: str = ""
) -> WorkerBuilder:
    """A worker that serves a version of the adapter, or holds one with the digest `staged`."""
    held = Staged(
        version=version, source=Source(path=PATH), digest=staged, size_bytes=1, in_memory=True
    )
    adapter = AdapterState(
        name="sql",
        version=version if digest else None,
        digest=digest,
        source=Source(path=PATH) if digest else None,
        staged=held if staged else None,
    )
    return worker.reporting(adapters=(adapter,), adapter_slots=SLOTS)


def refuses(worker: WorkerBuilder, reason: Reason) -> WorkerBuilder:
    failure = AdapterFailure(
        name="sql", version="7", reason=reason, message="other files", age_seconds=1
    )
    return worker.reporting(adapter_failures=(failure,))


def fleet_of(*workers: WorkerBuilder, wants: Any, pinned: tuple[PinnedAdapter, ...] = ()):
    status = FleetStatus.model_validate(BASE).model_copy(update={"pinned_adapters": pinned})
    revision = revision_of(make_fleet(*workers, adapters={"max": 2}))
    here = (w.of_revision(revision) for w in workers)
    return make_fleet(*here, wants=wants, status=status, adapters={"max": 2})


def decided(observed: FleetObserved) -> Decision:
    return decide(observed, default_image="image", now=NOW)


def reason_of(decision: Decision) -> str | None:
    stalled = condition_of(decision.weights["sql"].conditions, ConditionType.STALLED)
    return stalled and stalled.reason


def ready(decision: Decision) -> str:
    found = condition_of(decision.weights["sql"].conditions, ConditionType.READY)
    assert found is not None
    return found.status


class TestPins:
    def test_the_first_report_is_pinned_and_stored_before_the_adapter_is_served(self):
        workers = [has(make_worker(n).serving("base"), None, staged=D1) for n in range(2)]
        observed = fleet_of(*workers, wants=asks())
        before = decided(observed)
        computed = replace(observed, status=before.fleet, stored=observed.status)
        stored = replace(computed, stored=before.fleet)

        assert [(p.adapter, p.digest) for p in before.fleet.pinned_adapters] == [("sql", D1)]
        assert is_urgent(observed.status, before.fleet)
        for each in (before, decided(computed)):
            assert texts_of(each.worker_calls) == []
            assert each.waits_for_pin
        calls = decided(stored).worker_calls
        assert texts_of(calls) == ["adapter sql 7 on policy-0", "adapter sql 7 on policy-1"]
        assert {c.digest for c in calls} == {D1}

    @pytest.mark.parametrize("up_to", [None, 9], ids=["no mark", "its pin was dropped"])
    @pytest.mark.parametrize("staged", ["", D2], ids=["nothing is staged", "other files are"])
    def test_a_recorded_version_without_a_pin_gets_that_of_its_record(self, staged, up_to):
        """A late write of a former leader may name a version whose pin the fleet has dropped since."""
        wants = asks(applied="7")
        applied = wants.status.applied.model_copy(update={"digest": D1})
        wants = replace(wants, status=wants.status.model_copy(update={"applied": applied}))
        runs = () if up_to is None else (DroppedRun(adapter="sql", up_to=up_to),)
        observed = fleet_of(
            *(has(make_worker(n).joining("base"), None, staged=staged) for n in range(2)),
            wants=wants,
        )
        memory = {"dropped_pins": DroppedPins(runs=runs)} if runs else {}
        observed = replace(observed, status=observed.status.model_copy(update=memory))
        first = decided(observed)
        calls = decided(replace(observed, status=first.fleet)).worker_calls

        assert [(p.version, p.digest) for p in first.fleet.pinned_adapters] == [("7", D1)]
        assert {c.digest for c in (*first.worker_calls, *calls)} == {D1}

    def test_a_moving_revision_is_pinned_to_the_first_commit(self):
        repository = {"huggingFace": {"repo": "o/sql", "revision": "main"}}
        source = Source(hugging_face=HuggingFaceSource(repo="o/sql", revision="c" * 40))
        worker = has(make_worker(0).serving("base"), None, staged=D1)
        (state,) = worker.view().state.adapters
        staged = state.staged.model_copy(update={"source": source})
        worker = worker.reporting(adapters=(state.model_copy(update={"staged": staged}),))
        wants = asks(source=repository)
        before = decided(fleet_of(worker, wants=wants))
        (call,) = decided(
            fleet_of(worker, wants=wants, pinned=before.fleet.pinned_adapters)
        ).worker_calls

        assert before.fleet.pinned_adapters[0].commit == "c" * 40
        assert call.source.key().revision == "c" * 40

    def test_the_newest_pins_and_those_in_use_are_kept(self):
        old = tuple(pin(str(n), D1) for n in range(100, 100 + MAX_PINNED_ADAPTERS))
        last = old[-1].version
        workers = has(make_worker(0).serving("base"), None, staged=D2)
        wants = asks(applied=last)
        kept = decided(fleet_of(workers, wants=wants, pinned=old)).fleet.pinned_adapters

        assert len(kept) == MAX_PINNED_ADAPTERS
        assert [kept[0].version, kept[-1].version] == ["7", last]
        assert old[-2] not in kept

    @pytest.mark.parametrize(("adapter", "refused"), [("sql", "DigestRequired"), ("math", None)])
    @pytest.mark.parametrize("digest", [None, D1])
    def test_a_version_whose_pin_was_dropped_needs_a_digest(self, adapter, refused, digest):
        marked = DroppedPins(runs=(DroppedRun(adapter=adapter, up_to=7),))
        observed = fleet_of(
            make_worker(0).serving("base").reporting(adapter_slots=SLOTS),
            wants=asks(**({"digest": digest} if digest else {})),
        )
        status = observed.status.model_copy(update={"dropped_pins": marked})
        decision = decided(replace(observed, status=status))

        refused = None if digest else refused
        assert reason_of(decision) == refused
        assert bool(decision.worker_calls) is (refused is None)

    def test_the_pin_that_makes_room_for_a_new_one_leaves_a_mark(self):
        old = tuple(pin(str(n), D1) for n in range(300, 300 - MAX_PINNED_ADAPTERS, -1))
        worker = has(make_worker(0).serving("base"), None, version="301", staged=D2)
        found = decided(fleet_of(worker, wants=asks("301"), pinned=old)).fleet.dropped_pins

        assert [(r.adapter, r.run_id, r.up_to) for r in found.runs] == [("sql", None, 101)]


class TestOtherBytes:
    def test_a_serving_worker_with_other_bytes_is_taken_out_of_service(self):
        observed = fleet_of(
            *(has(make_worker(n).serving("base"), D1) for n in range(2)),
            has(make_worker(2).serving("base"), D2),
            wants=asks(applied="7"),
            pinned=(pin("7", D1),),
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == ["fence on policy-2"]
        assert ready(decision) == "False"

    def test_without_a_pin_the_digest_of_the_majority_counts(self):
        observed = fleet_of(
            *(has(make_worker(n).serving("base"), D1) for n in range(2)),
            has(make_worker(2).serving("base"), D2),
            wants=asks(applied="7"),
        )
        decision = decided(observed)

        assert [p.digest for p in decision.fleet.pinned_adapters] == [D1]
        assert ready(decision) == "False"

    @pytest.mark.parametrize("pinned", [(pin("7", D1),), ()])
    def test_a_joining_worker_with_other_or_unpinned_bytes_is_not_admitted(self, pinned):
        observed = fleet_of(
            has(make_worker(0).serving("base"), D1),
            has(make_worker(1).joining("base"), D2),
            wants=asks(applied="7"),
            pinned=pinned,
        )

        assert "admit base on policy-1" not in texts_of(decided(observed).worker_calls)

    @pytest.mark.parametrize(
        "worker", [make_worker(1).serving("base"), make_worker(1).joining("base")]
    )
    def test_bytes_that_differ_from_the_pin_never_serve_also_if_spec_digest_names_them(
        self, worker
    ):
        observed = fleet_of(
            has(make_worker(0).serving("base"), D1),
            has(worker, D2),
            wants=asks(applied="7", digest=D2),
            pinned=(pin("7", D1),),
        )
        decision = decided(observed)
        (call,) = (c for c in decision.worker_calls if c.pod_name == "policy-1")

        assert (call.kind, call.digest) in {("fence", None), ("adapter", D1)}
        assert reason_of(decision) == "VersionReused"

    def test_a_joining_worker_that_finds_other_files_is_reported(self):
        observed = fleet_of(
            has(make_worker(0).serving("base"), D1),
            refuses(has(make_worker(1).joining("base"), None), Reason.DIGEST_MISMATCH),
            wants=asks(applied="7"),
            pinned=(pin("7", D1),),
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == []
        assert (ready(decision), reason_of(decision)) == ("False", "VersionReused")


class TestReusedVersions:
    @pytest.mark.parametrize(
        "wants",
        [
            pytest.param(asks(path="/weights/other/step_7", applied="6"), id="another source"),
            pytest.param(asks(digest=D2, applied="6"), id="another digest"),
        ],
    )
    def test_nothing_changes_and_it_is_reported(self, wants):
        observed = fleet_of(
            has(make_worker(0).serving("base"), D2, version="6"),
            has(make_worker(1).joining("base"), D2, version="6"),
            wants=wants,
            pinned=(pin("7", D1), pin("6", D2)),
        )
        decision = decided(observed)

        assert texts_of(decision.worker_calls) == ["admit base on policy-1"]
        assert (ready(decision), reason_of(decision)) == ("False", "VersionReused")

    @pytest.mark.parametrize(
        "wants",
        [
            pytest.param(asks(path="/weights/other/step_7"), id="the same version elsewhere"),
            pytest.param(asks("8", suspend=True), id="another version, suspended"),
        ],
    )
    def test_a_weightversion_that_was_created_again_keeps_what_the_workers_serve(self, wants):
        observed = fleet_of(
            has(make_worker(0).serving("base"), D1),
            has(make_worker(1).joining("base"), None),
            wants=wants,
            pinned=(pin("7", D1),),
        )
        (call,) = decided(observed).worker_calls

        assert (str(call.work), call.pod_name) == ("adapter sql 7", "policy-1")
        assert (call.digest, str(call.source)) == (D1, PATH)


class TestRefusals:
    def test_failures_within_the_limit_are_reported_once_no_other_worker_makes_progress(self):
        workers = [
            has(make_worker(0).serving("base"), D1),
            refuses(has(make_worker(1).serving("base"), None), Reason.DIGEST_MISMATCH),
        ]
        wants = asks(applied="7", rollout={"maxFailures": 1})

        assert reason_of(decided(fleet_of(*workers, wants=wants, pinned=(pin("7", D1),)))) == (
            "VersionReused"
        )
