"""Verdicts are written at once, progress once a second, and what is equal never."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support import virtual_time
from tests.support.builders import (
    NOW,
    applied_status,
    make_condition,
    make_spec,
    make_transition,
    make_weights,
)
from tests.support.fake_kube import FakeCluster
from tests.support.identities import pin
from tests.support.sessions import make_session, make_sessions

from fleet_operator.core.observed import WeightsView
from fleet_operator.errors import Conflict, Retryable, Unknown, WriteUndone
from fleet_operator.runtime.managed_fields import is_edited
from fleet_operator.runtime.status_writer import NEVER, PROGRESS_SECONDS
from fleet_operator.runtime.store import FleetRecord
from rlfleet_resources.fleet_status import AppliedWeights, FleetStatus, WorkerCounts
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
WEIGHTS_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/weightversions/policy"
READY = make_condition(ConditionType.READY)
NOT_READY = make_condition(ConditionType.READY, is_true=False, reason=ConditionReason.ROLLING_OUT)
STALLED = make_condition(ConditionType.STALLED, reason=ConditionReason.SOURCE_NOT_FOUND)
BASE = FleetStatus(observed_generation=1, desired_version="1", conditions=(READY,))


class Harness:
    """Statuses over a fake API server."""

    def __init__(self, stored: FleetStatus = BASE) -> None:
        self.cluster = FakeCluster()
        for path, uid in ((FLEET_PATH, "fleet-1"), (WEIGHTS_PATH, "wv-1")):
            self.cluster.put(path, {"metadata": {"uid": uid}})
        self.kube = self.cluster.client()
        self.sessions = make_sessions(self.kube)
        self.statuses = self.sessions.of(KEY).statuses
        self.computed = stored

    async def write(self, status: FleetStatus) -> None:
        before, self.computed = self.computed, status
        self.statuses.take_fleet("fleet-1", before, status)
        await self._write("fleet-1")

    async def write_weights(self, view: WeightsView, status: WeightsStatus) -> None:
        self.statuses.take_weights(view, status)
        await self._write(view.uid)

    async def _write(self, uid: str) -> None:
        if self.statuses.is_due(uid):
            await self.statuses.write(uid)

    @property
    def written(self) -> int:
        return sum(verb == "APPLY" for verb, _ in self.kube.requests)


def serving(count: int, **changes: object) -> FleetStatus:
    return BASE.model_copy(update={"workers": WorkerCounts(serving=count)} | changes)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"conditions": (NOT_READY,)}, id="a verdict flips"),
        pytest.param({"conditions": (READY, STALLED)}, id="a person is needed"),
        pytest.param({"observed_generation": 2}, id="another generation is spoken of"),
        pytest.param({"desired_version": "2"}, id="another version is wanted"),
    ],
)
async def test_a_status_is_written_at_once_when(change):
    harness = Harness()
    await harness.write(serving(1))
    await harness.write(serving(1, **change))
    assert harness.written == 2


async def test_mere_progress_is_held_back_and_then_folded_into_one_write():
    harness = Harness()
    await harness.write(serving(1))
    for count in range(2, 50):
        await harness.write(serving(count))
    assert harness.written == 1
    assert harness.statuses.held_back_seconds() == PROGRESS_SECONDS
    await asyncio.sleep(PROGRESS_SECONDS)
    await harness.write(serving(49))
    assert harness.written == 2
    assert harness.statuses.held_back_seconds() == NEVER
    stored = harness.cluster.objects[f"{FLEET_PATH}/status"]["status"]
    assert stored["workers"]["serving"] == 49


async def test_a_status_that_calls_wait_for_is_written_at_once_although_only_progress_has_changed():
    harness = Harness()
    await harness.write(serving(1))
    await harness.write(serving(2, transition=make_transition()))
    assert harness.written == 1
    harness.statuses.begin_due(awaited=True)
    await asyncio.sleep(PROGRESS_SECONDS / 2)
    assert harness.written == 2
    assert (
        harness.cluster.objects[f"{FLEET_PATH}/status"]["status"]["transition"]["version"] == "42"
    )


async def test_planners_see_what_was_computed_last_written_or_not():
    harness = Harness()
    await harness.write(serving(1))
    await harness.write(serving(2))
    record = FleetRecord(
        uid="fleet-1", version="1", generation=1, deleting=False, spec=make_spec(), status=BASE
    )
    assert harness.statuses.fleet(record).workers.serving == 2


def test_without_anything_computed_the_stored_status_counts():
    harness = Harness()
    record = FleetRecord(
        uid="other", version="1", generation=1, deleting=False, spec=make_spec(), status=BASE
    )
    view = make_weights("1", status=applied_status("1"))

    assert harness.statuses.fleet(record) == BASE
    assert harness.statuses.weights(view, "1") == view


async def test_the_status_of_a_recreated_object_is_not_touched():
    harness = Harness()
    harness.cluster.objects[FLEET_PATH]["metadata"]["uid"] = "fleet-2"
    with pytest.raises(Conflict):
        await harness.write(serving(1))
    assert f"{FLEET_PATH}/status" not in harness.cluster.objects


async def test_the_status_of_a_deleted_object_is_not_written():
    harness = Harness()
    harness.cluster.drop(FLEET_PATH)
    await harness.write(serving(1))


async def test_absent_fields_are_left_out_so_that_the_server_removes_them():
    harness = Harness()
    await harness.write(serving(1, applied_version="1"))
    await harness.write(serving(1, applied_version=None, desired_version="2"))
    assert "appliedVersion" not in harness.cluster.objects[f"{FLEET_PATH}/status"]["status"]


class TestEvents:
    async def written(self, harness: Harness) -> list[str]:
        await harness.sessions.events.flush()
        events = (o for p, o in harness.cluster.objects.items() if "/events/" in p)
        return [f"{e['involvedObject']['kind']} {e['reason']}" for e in events]

    async def test_an_event_is_posted_even_if_its_write_is_held_back(self):
        harness = Harness()
        view = make_weights("2", status=WeightsStatus(desired_version="2"))
        await harness.write_weights(view, view.status)
        entry = {
            "version": "2",
            "result": "Applied",
            "startedAt": NOW.isoformat(),
            "totalSeconds": 1,
        }
        done = WeightsStatus.model_validate({"desiredVersion": "2", "history": [entry]})
        await harness.write_weights(view, done)
        assert await self.written(harness) == ["WeightVersion WeightsApplied"]

    async def test_a_new_process_posts_no_event_for_a_stored_change(self):
        stored = BASE.model_copy(update={"conditions": (NOT_READY, STALLED)})
        harness = Harness(stored)
        await harness.write(stored)
        assert await self.written(harness) == []


async def test_the_statuses_of_deleted_weightversions_are_dropped():
    harness = Harness()
    view = make_weights("2")
    await harness.write_weights(view, WeightsStatus(phase=RolloutPhase.STAGING))
    harness.statuses.forget_all_but({view.uid})
    assert harness.statuses.weights(view, "1").status.phase is RolloutPhase.STAGING
    harness.statuses.forget_all_but(set())
    assert harness.statuses.weights(view, "1").status.phase is RolloutPhase.PENDING


STEP = st.tuples(
    st.sampled_from([0.0, 0.1, 0.4, 1.0, 5.0]),
    st.integers(0, 4),
    st.sampled_from([{}, {}, {}, {"conditions": (NOT_READY,)}, {"desired_version": "2"}]),
    st.sampled_from([None, None, None, Conflict("409")]),
)


@settings(max_examples=80)
@example([(0.0, n % 5, {}, None) for n in range(20)])
@given(st.lists(STEP, min_size=1, max_size=25))
def test_verdicts_are_written_at_once_and_progress_at_most_once_a_second(steps):
    async def story() -> None:
        harness = Harness()
        stored, failed = BASE, False
        written_at: list[float] = []
        for pause, count, change, error in steps:
            await asyncio.sleep(pause)
            status = serving(count, **change)
            harness.kube.error = error
            before = harness.written
            try:
                await harness.write(status)
            except Conflict:
                failed = True
                continue
            finally:
                harness.kube.error = None
            verdict = (status.conditions, status.desired_version)
            urgent = verdict != (stored.conditions, stored.desired_version)
            if harness.written > before:
                assert status != stored, "what is equal is not written"
                if not urgent and written_at and not failed:
                    waited_seconds = virtual_time.now() - written_at[-1]
                    assert waited_seconds >= PROGRESS_SECONDS - 1e-6, "but for rounding"
                written_at.append(virtual_time.now())
                stored, failed = status, False
            else:
                assert not urgent, "a verdict is not held back"
            held = harness.statuses.held_back_seconds()
            assert (held == NEVER) is (stored == status)
            assert held == NEVER or 0 <= held <= PROGRESS_SECONDS
        await asyncio.sleep(PROGRESS_SECONDS)
        await harness.write(status)
        shown = harness.cluster.objects.get(f"{FLEET_PATH}/status", {"status": BASE.to_json()})
        assert FleetStatus.model_validate(shown["status"]) == status

    virtual_time.run(story())


async def test_the_object_that_is_due_first_sets_the_next_reconcile():
    harness = Harness()
    view = make_weights("2")
    await harness.write(serving(1))
    await asyncio.sleep(0.4)
    await harness.write_weights(view, WeightsStatus(superseded_versions=1))
    await harness.write(serving(2))
    await harness.write_weights(view, WeightsStatus(superseded_versions=2))
    assert harness.statuses.held_back_seconds() == pytest.approx(PROGRESS_SECONDS - 0.4)


async def test_a_status_that_is_overdue_is_due_now_and_not_before_now():
    harness = Harness()
    await harness.write(serving(1))
    await harness.write(serving(2))
    await asyncio.sleep(100)
    assert harness.statuses.held_back_seconds() == 0


def record(harness: Harness, status: FleetStatus = BASE) -> FleetRecord:
    """The fleet as the watch of a process has brought it."""
    version = harness.cluster.objects[FLEET_PATH]["metadata"]["resourceVersion"]
    return FleetRecord(
        uid="fleet-1",
        version=version,
        generation=1,
        deleting=False,
        spec=make_spec(),
        status=status,
    )


async def test_a_former_leader_cannot_overwrite_the_status_of_its_successor():
    deposed = Harness()
    deposed.statuses.fleet(record(deposed))
    successor = make_session(deposed.cluster.client()).statuses
    successor.fleet(record(deposed))
    successor.take_fleet("fleet-1", BASE, serving(2))
    await successor.write("fleet-1")

    with pytest.raises(Conflict):
        await deposed.write(serving(1))

    stored = deposed.cluster.objects[f"{FLEET_PATH}/status"]["status"]
    assert stored["workers"]["serving"] == 2


async def test_a_leader_builds_on_its_own_writes_before_its_watch_delivers_them():
    harness = Harness()
    before = record(harness)
    harness.statuses.fleet(before)
    await harness.write(serving(1))
    harness.statuses.fleet(before)
    await harness.write(serving(2, observed_generation=2))
    assert harness.written == 2


def pinned(*versions: str) -> FleetStatus:
    """The status after these versions were applied, the newest one first."""
    pins = tuple(pin(each, f"/weights/{each}", f"sha256:{each * 64}") for each in versions)
    applied = AppliedWeights(version=versions[0])
    return BASE.model_copy(
        update={"applied": applied, "applied_version": versions[0], "pinned": pins}
    )


class Successor:
    """A leader that has read the status, and a former one that writes once more."""

    READ, RECORDED = pinned("1"), pinned("2", "1")

    def __init__(self) -> None:
        self.harness = Harness(self.READ)
        self.path = f"{FLEET_PATH}/status"
        self.harness.cluster.put(FLEET_PATH, self.harness.cluster.objects[FLEET_PATH])
        self.read = record(self.harness, self.READ)

    async def former_writes(self) -> None:
        """The last write of the former leader, over the version that both have read."""
        former = make_session(self.harness.cluster.client()).statuses
        former.fleet(self.read)
        former.take_fleet("fleet-1", self.READ, self.RECORDED)
        await former.write("fleet-1")

    async def decides(self, before: FleetStatus, **changes: object) -> None:
        """The leader computes a status from this one, and writes it."""
        statuses = self.harness.statuses
        computed = before.model_copy(update={"workers": WorkerCounts(serving=1)} | changes)
        statuses.take_fleet("fleet-1", before, computed)
        await statuses.write("fleet-1")

    @property
    def stored(self) -> Any:
        return self.harness.cluster.objects[self.path]["status"]

    @property
    def stored_pins(self) -> list[str]:
        return [each["version"] for each in self.stored["pinned"]]


async def test_a_leader_keeps_what_a_former_one_has_recorded_since_it_read_the_status():
    its = Successor()
    statuses = its.harness.statuses
    statuses.take_fleet("fleet-1", statuses.fleet(its.read), its.READ)
    await its.former_writes()
    before = statuses.fleet(record(its.harness, its.RECORDED))  # its watch brings it
    await its.decides(before)

    assert before.applied_version == its.stored["appliedVersion"] == "2"
    assert (its.stored_pins, its.stored["workers"]["serving"]) == (["2", "1"], 1)
    assert [e.version for e in statuses.stored(its.read).pinned] == ["2", "1"]


async def test_a_leader_reads_the_status_that_its_late_watch_did_not_bring_and_keeps_its_record():
    its = Successor()
    statuses = its.harness.statuses
    before = statuses.fleet(its.read)
    await its.former_writes()
    with pytest.raises(Conflict):
        await its.decides(before)
    assert its.stored["workers"]["serving"] == 0

    await its.decides(statuses.fleet(its.read))

    assert (its.stored["appliedVersion"], its.stored_pins) == ("2", ["2", "1"])
    assert its.stored["workers"]["serving"] == 1


async def test_a_decision_from_before_a_former_leader_wrote_does_not_undo_its_record():
    its = Successor()
    statuses = its.harness.statuses
    statuses.take_fleet("fleet-1", statuses.fleet(its.read), its.READ)
    before = statuses.fleet(its.read)
    await its.former_writes()
    statuses.fleet(record(its.harness, its.RECORDED))
    await its.decides(before)

    assert (its.stored["appliedVersion"], its.stored_pins) == ("2", ["2", "1"])


async def test_an_own_write_without_an_answer_is_not_the_record_of_another_process():
    """The leader has gone back to the version before since then."""

    its = Successor()
    statuses, cluster = its.harness.statuses, its.harness.cluster
    its.harness.kube.answers_lost = True
    with pytest.raises(Unknown):
        await its.decides(statuses.fleet(its.read), **dict(its.RECORDED))
    its.harness.kube.answers_lost = False
    assert its.stored["appliedVersion"] == "2"

    lost = FleetStatus.model_validate(cluster.objects[its.path]["status"])
    back = {**dict(its.READ), "pinned": its.RECORDED.pinned}
    statuses.take_fleet("fleet-1", statuses.fleet(its.read), BASE.model_copy(update=back))
    await its.decides(statuses.fleet(record(its.harness, lost)))

    assert its.stored["appliedVersion"] == "1"


async def test_an_event_in_the_middle_of_a_write_is_noted_with_its_record_or_not_at_all():
    """The write fails, and the next one names the version that this process has read."""

    its = Successor()
    statuses, kube = its.harness.statuses, its.harness.kube
    before = statuses.fleet(its.read)
    kube.delay_seconds, kube.error = 1.0, Retryable("429 too many requests")
    writing = asyncio.ensure_future(its.decides(before))
    await asyncio.sleep(0.5)
    await its.former_writes()
    statuses.fleet(record(its.harness, its.RECORDED))
    with pytest.raises(Retryable):
        await writing
    kube.delay_seconds, kube.error = 0, None
    with pytest.raises(Conflict):
        await its.decides(before)
    await its.decides(statuses.fleet(its.read))

    assert (its.stored["appliedVersion"], its.stored_pins) == ("2", ["2", "1"])


@pytest.mark.parametrize("watched", [True, False], ids=["from the watch", "read after a conflict"])
async def test_a_status_that_a_backup_tool_has_restored_is_written_over(watched):
    """The fleet was rolled back to version 1 after the backup."""

    its = Successor()
    statuses, cluster = its.harness.statuses, its.harness.cluster
    statuses.take_fleet("fleet-1", statuses.fleet(its.read), its.READ)
    before = statuses.fleet(its.read)
    fields = {"f:status": {"f:applied": {"f:version": {}}}}
    entry = {"manager": "velero-server", "operation": "Update", "fieldsV1": fields}
    backup = cluster.objects[FLEET_PATH] | {"status": its.RECORDED.to_json()}
    backup["metadata"]["managedFields"] = [entry]
    restored = cluster.put(FLEET_PATH, backup)
    if watched:
        fleet = FleetRecord(
            uid="fleet-1",
            version=restored["metadata"]["resourceVersion"],
            generation=1,
            deleting=False,
            spec=None,
            status=its.RECORDED,
            edited=is_edited(restored),
        )
        assert statuses.fleet(fleet).applied_version == "1"
    else:
        with pytest.raises(Conflict):
            await its.decides(before)
    await its.decides(statuses.fleet(its.read))

    assert (its.stored["appliedVersion"], its.stored_pins) == ("1", ["1"])


async def test_statuses_are_written_after_the_api_server_was_restored_from_a_backup():
    """Its resourceVersions have gone back, and the watch shows what it showed before."""

    harness = Harness()
    before = replace(record(harness), version="1000")
    for count in range(1, 4):
        status = harness.statuses.fleet(before)
        uid = "fleet-1"
        harness.statuses.take_fleet(uid, status, serving(count, observed_generation=count))
        if count == 1:
            with pytest.raises(Conflict):
                await harness.statuses.write(uid)
        await harness.statuses.write(uid)

        stored = harness.cluster.objects[f"{FLEET_PATH}/status"]["status"]
        assert stored["workers"]["serving"] == count


async def test_a_conflict_on_a_fleet_that_is_gone_reads_nothing_from_its_successor():
    its = Successor()
    before = its.harness.statuses.fleet(its.read)
    its.harness.cluster.drop(FLEET_PATH)
    its.harness.cluster.put(
        FLEET_PATH, {"metadata": {"uid": "fleet-2"}, "status": its.RECORDED.to_json()}
    )
    with pytest.raises(Conflict):
        await its.decides(before)

    assert its.harness.statuses.fleet(its.read).applied_version == "1"


class Overwritten:
    """One object whose status this process has written, and what its watch shows then."""

    WRITTEN = WeightsStatus(phase=RolloutPhase.STAGING)

    def __init__(self, kind: str) -> None:
        self.harness = Harness()
        self.is_fleet = kind == "fleet"
        self.path = FLEET_PATH if self.is_fleet else WEIGHTS_PATH

    def watch(self, *, foreign: bool, version: int) -> None:
        """Show the object with a status of another writer, or with the own one."""
        if self.is_fleet:
            status = BASE if foreign else serving(1)
            shown = replace(record(self.harness, status), version=str(version))
            self.harness.statuses.fleet(shown)
        else:
            view = make_weights("2", status=WeightsStatus() if foreign else self.WRITTEN)
            self.harness.statuses.weights(view, str(version))

    async def decide(self) -> int:
        """Decide what was decided before. Returns: how often a status was written."""
        if self.is_fleet:
            await self.harness.write(serving(1))
        else:
            await self.harness.write_weights(make_weights("2"), self.WRITTEN)
        return self.harness.written


@pytest.mark.parametrize("kind", ["fleet", "weights"])
async def test_a_status_that_another_writer_has_overwritten_is_written_again_once(kind):
    """Also one that a write without an answer overwrote late."""

    overwritten = Overwritten(kind)
    assert await overwritten.decide() == 1
    cluster = overwritten.harness.cluster
    for path in (FLEET_PATH, WEIGHTS_PATH):
        cluster.put(path, cluster.objects[path])
    foreign = int(cluster.objects[overwritten.path]["metadata"]["resourceVersion"])
    for _ in range(2):
        await asyncio.sleep(PROGRESS_SECONDS)
        overwritten.watch(foreign=True, version=foreign)
        assert await overwritten.decide() == 2


async def test_a_weightversion_that_was_forgotten_leaves_no_report_of_another_writer():
    """The operator may drive it again later, for example in its next term."""

    overwritten = Overwritten("weights")
    await overwritten.decide()
    cluster = overwritten.harness.cluster

    async def overwrite_again() -> None:
        for _ in range(10):
            await asyncio.sleep(PROGRESS_SECONDS)
            for path in (FLEET_PATH, WEIGHTS_PATH):
                cluster.put(path, cluster.objects[path])
            seen = cluster.objects[overwritten.path]["metadata"]["resourceVersion"]
            overwritten.watch(foreign=True, version=int(seen))
            await overwritten.decide()

    with pytest.raises(WriteUndone):
        await overwrite_again()
    overwritten.harness.statuses.forget_all_but(set())
    before = overwritten.harness.written
    assert await overwritten.decide() == before + 1


@pytest.mark.parametrize("kind", ["fleet", "weights"])
@pytest.mark.parametrize(
    ("foreign", "later"),
    [
        pytest.param(True, -1, id="from before the own write"),
        pytest.param(False, 0, id="of the own write"),
        pytest.param(False, 1, id="of a change of the spec"),
    ],
)
async def test_a_status_is_not_written_again_for_an_event(kind, foreign, later):
    overwritten = Overwritten(kind)
    await overwritten.decide()
    await asyncio.sleep(PROGRESS_SECONDS)
    overwritten.watch(foreign=foreign, version=overwritten.harness.cluster.version + later)
    assert await overwritten.decide() == 1


@pytest.mark.parametrize("kind", ["fleet", "weights"])
async def test_what_another_release_has_written_meanwhile_is_in_the_next_write(kind):
    """For example a newer operator that led for a moment in an upgrade."""

    overwritten = Overwritten(kind)
    await overwritten.decide()
    harness = overwritten.harness
    stored = harness.cluster.objects[f"{overwritten.path}/status"]["status"]
    condition = READY.to_json() | {"type": "InventedLater"}
    new = {"newField": 1, "conditions": [*stored["conditions"], condition]}
    cluster = harness.cluster
    for path in (FLEET_PATH, WEIGHTS_PATH):
        cluster.put(path, cluster.objects[path])
    version = cluster.objects[overwritten.path]["metadata"]["resourceVersion"]
    await asyncio.sleep(PROGRESS_SECONDS)
    if kind == "fleet":
        theirs = FleetStatus.read(stored | new)
        seen = harness.statuses.fleet(replace(record(harness, theirs), version=version))
        await harness.write(seen.model_copy(update={"workers": WorkerCounts(serving=2)}))
    else:
        view = make_weights("2", status=WeightsStatus.read(stored | new))
        seen_view = harness.statuses.weights(view, version)
        changed = {"phase": RolloutPhase.LOADING}
        await harness.write_weights(view, seen_view.status.model_copy(update=changed))
    written = cluster.objects[f"{overwritten.path}/status"]["status"]
    assert written.items() >= new.items()
