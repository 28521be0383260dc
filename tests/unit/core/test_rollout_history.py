"""The history keeps how each rollout ended, why, and at whose request."""

from __future__ import annotations

import ast
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights, make_worker

from fleet_operator import core
from fleet_operator.core.decision import decide
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.problems import Problem, with_problems
from fleet_operator.core.unreadable import unread_parts
from fleet_worker.protocol import Reason, SwapTimings
from rlfleet_resources.conditions import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    condition_of,
    new_condition,
)
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.unread import Unread, UnreadEntry
from rlfleet_resources.weights_status import HistoryEntry, RolloutPhase, StoreReads, WeightsStatus

BEGAN = NOW - timedelta(seconds=30)


def condition(kind: ConditionType, reason: ConditionReason, message: str) -> Condition:
    is_true = kind is ConditionType.STALLED
    made = {"is_true": is_true, "reason": reason, "message": message}
    return new_condition((), kind, **made, generation=1, now=BEGAN)


def stalled(reason: ConditionReason, message: str = "why") -> WeightsStatus:
    """The status of version 2, which the trainer has published."""
    return under_way(condition(ConditionType.STALLED, reason, message))


def under_way(*conditions: Condition) -> WeightsStatus:
    return WeightsStatus(
        observed_generation=1,
        desired_version="2",
        phase=RolloutPhase.STAGING,
        started_at=BEGAN,
        phase_started_at=BEGAN,
        requested_by="trainer",
        conditions=conditions,
    )


def decided(status: WeightsStatus, version: str, *, by: str = "rlfleet-cli") -> WeightsStatus:
    """The status when the spec names another version; all workers serve version 1."""
    wants = replace(make_weights(version, status=status), requested_by=by, generation=2)
    return looked_at(wants, *(make_worker(n).serving("1") for n in range(2)))


def looked_at(wants: WeightsView, *workers: WorkerBuilder) -> WeightsStatus:
    made = decide(make_fleet(*workers, wants=wants), default_image="image", now=NOW)
    assert made.defects == ()
    return made.weights[wants.uid]


def last_but_the_present(status: WeightsStatus) -> HistoryEntry:
    return next(e for e in status.history if e.version == "2")


REFUSED = (
    "BaseMissing", "CanaryRefused", "CheckpointAmbiguous", "CheckpointChanged", "CheckpointMalformed",
    "CheckpointMismatch", "CheckpointNotFinite", "CheckpointTruncated", "DeltaMismatch", "DigestMismatch",
    "DigestRequired", "FailureBudgetExceeded", "PinUnreadable", "RewindRefused",
    "SourceNotFound", "SourceOutsideRoots", "SourceUnreadable", "VersionReused",
)  # fmt: skip
"""Written out here, so that a reason that the planner forgets is found."""
DELAYED = (
    "CallWithoutEffect", "DeadlineExceeded", "SourceUnknown", "UpdateHeld", "VersionsDiffer",
    "WorkersFailing",
)  # fmt: skip
"""The workers, not the version. A worker that answers a call and does nothing has not read the files."""


def test_every_reason_of_a_problem_of_a_rollout_says_whether_it_refuses_the_version():
    named = set[str]()
    for source in Path(core.__file__).parent.rglob("*.py"):
        for part in ast.walk(ast.parse(source.read_text())):
            texts = {
                ast.unparse(n) for n in ast.walk(part) if isinstance(n, ast.Name | ast.Attribute)
            }
            if isinstance(part, ast.FunctionDef) and "RolloutProblem" in texts:
                named |= {t for t in texts if t.startswith("ConditionReason.")}
    reasons = {ConditionReason[each.removeprefix("ConditionReason.")] for each in named}

    assert ConditionReason.REWIND_REFUSED in reasons
    assert reasons <= {*REFUSED, *DELAYED}


@pytest.mark.parametrize("version", ["3", "1"], ids=["replaced", "taken back"])
@pytest.mark.parametrize("reason", [ConditionReason(each) for each in REFUSED])
def test_a_version_that_was_refused_stays_refused(reason, version):
    status = decided(stalled(reason, "policy-0 refuses it"), version)
    entry = last_but_the_present(status)

    assert (entry.result, entry.reason, entry.message) == ("Refused", reason, "policy-0 refuses it")
    assert (entry.requested_by, entry.total_seconds) == ("trainer", 30)
    assert status.superseded_versions == 0


def test_the_bytes_that_workers_have_read_are_counted_when_the_version_is_applied():
    def worker(
        number: int, version: str, read_bytes: int | None, peer_bytes: int | None = None
    ) -> WorkerBuilder:
        timings = SwapTimings(
            version=version,
            read_bytes=read_bytes,
            peer_bytes=peer_bytes,
            published_bytes=None if peer_bytes else 7,
            size_bytes=800,
        )
        return make_worker(number).serving("2").reporting(timings=timings)

    wants = make_weights("2", status=under_way())
    workers = [worker(0, "2", 100), worker(1, "2", 7), worker(2, "2", None), worker(3, "1", 50)]
    workers += [worker(4, "2", 0, 800), worker(5, "2", 0, 800)]
    # One that goes has swapped to version 2 of another run.
    workers += [worker(6, "2", 5000).reporting(run_id="run-9").going()]
    applied = looked_at(wants, *workers)
    later = looked_at(replace(wants, status=applied), worker(0, "2", 900))

    reads = StoreReads(
        bytes=107,
        workers=2,
        peer_bytes=1600,
        peer_workers=2,
        published_bytes=7,
        size_bytes=800,
    )
    assert applied.store_reads == later.store_reads == reads
    assert decided(applied, "3").store_reads is None


def test_every_refusal_of_a_worker_that_becomes_a_reason_counts():
    shared = {r for r in ConditionReason if r.value in {each.value for each in Reason}}

    assert shared <= set(REFUSED)


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        pytest.param(
            under_way(condition(ConditionType.READY, ConditionReason.ROLLING_OUT, "0 of 2")),
            "RollingOut",
            "0 of 2",
            id="on its way",
        ),
        pytest.param(
            under_way(
                condition(
                    ConditionType.READY,
                    ConditionReason.WAITING_FOR_CHECKPOINT,
                    "/weights/none does not exist yet",
                )
            ),
            "WaitingForCheckpoint",
            "/weights/none does not exist yet",
            id="its checkpoint never came",
        ),
        *(
            pytest.param(
                stalled(ConditionReason(late), "policy-0 is late"), late, "policy-0", id=late
            )
            for late in DELAYED
        ),
        pytest.param(under_way(), "", "", id="nothing is known"),
    ],
)
def test_a_version_on_its_way_is_superseded_and_its_last_reason_stays(status, reason, message):
    after = decided(status, "3")
    entry = last_but_the_present(after)

    assert (entry.result, entry.reason) == ("Superseded", reason)
    assert entry.message.startswith(message)
    assert "version 3" in entry.message
    assert after.superseded_versions == 1


def test_a_refusal_is_recorded_without_the_problems_of_the_operator():
    refused = stalled(ConditionReason.CHECKPOINT_TRUNCATED, "a file is short")
    problem = Problem(part="x", reason=ConditionReason.WRITE_REFUSED, message="no right to write")
    status = with_problems(refused, refused.conditions, [problem], generation=1, now=BEGAN)
    entry = last_but_the_present(decided(status, "3"))

    assert (entry.result, entry.message) == ("Refused", "a file is short")


def test_a_status_that_cannot_be_read_refuses_no_version():
    """Only its pins do, and they have a reason of their own."""
    status = under_way(condition(ConditionType.READY, ConditionReason.ROLLING_OUT, "0 of 2"))
    entry = UnreadEntry(within="history", number=0, raw={"version": "3", "result": "Skipped"})
    problems = unread_parts(status.model_copy(update={"unread": Unread(entries=(entry,))}))
    seen = with_problems(status, status.conditions, problems, generation=1, now=BEGAN)

    assert condition_of(seen.conditions, ConditionType.STALLED) is not None
    assert last_but_the_present(decided(seen, "3")).result == "Superseded"


@pytest.mark.parametrize("reason", [ConditionReason.ROLLING_OUT, ConditionReason.DIGEST_MISMATCH])
def test_a_long_message_fits(reason):
    kind = ConditionType.STALLED if reason in REFUSED else ConditionType.READY
    entry = last_but_the_present(decided(under_way(condition(kind, reason, "x" * 3000)), "3"))

    assert len(entry.message) <= MAX_MESSAGE_CHARACTERS


def test_the_writer_is_that_of_the_version_when_its_rollout_began():
    """Others may own the field later, as a repository that applies the same version."""
    began = decided(WeightsStatus(), "2", by="trainer")
    then = decided(began, "2", by="argocd")
    wants = replace(make_weights("2", status=then), requested_by="argocd", generation=2)
    done = looked_at(wants, *(make_worker(n).serving("2") for n in range(2)))

    assert [s.requested_by for s in (began, then, done)] == ["trainer"] * 3
    assert [(e.result, e.requested_by) for e in done.history] == [("Applied", "trainer")]
    after = decided(done, "3", by="rlfleet-cli")
    assert after.requested_by == "rlfleet-cli"


def test_a_superseded_version_names_the_writer_of_the_one_that_replaced_it():
    entry = last_but_the_present(decided(under_way(), "3", by="sweep-7"))

    assert entry.result == "Superseded"
    assert "version 3 of writer sweep-7" in entry.message


def test_a_halt_keeps_its_message():
    wants = replace(make_weights("2", status=under_way()), requested_by="x")
    broke = make_worker(0).joining("1").failed_to_load("2")
    (entry,) = looked_at(wants, broke, make_worker(1).paused("1").staged("2")).history

    assert (entry.result, entry.requested_by) == ("Halted", "trainer")
    assert entry.reason == "FailureBudgetExceeded"
    assert "policy-0" in entry.message
