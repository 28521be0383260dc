"""Within one run numeric versions only grow, unless the trainer allows a rollback."""

from __future__ import annotations

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights, make_worker, target
from tests.support.identities import D1
from tests.support.present import present

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.decision import decide
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.pins import Pins
from fleet_operator.core.rollback_guard import rollback_problem
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import (
    AppliedWeights,
    DroppedPins,
    DroppedRun,
    FleetStatus,
    PinnedWeights,
)
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus


def asks(
    version: str,
    *,
    run: str | None = "run-7",
    back_to: str | None = None,
    status: WeightsStatus | None = None,
) -> WeightsView:
    view = make_weights(version, status=status or WeightsStatus())
    update = {"run_id": run, "rollback_to": back_to}
    object.__setattr__(view, "spec", view.spec.model_copy(update=update))
    return view


def reached(version: str, run: str | None = "run-7") -> Checkpoint:
    return Checkpoint(version=version, source=target(version).source, run_id=run)


@pytest.mark.parametrize(
    ("wanted", "applied"),
    [
        pytest.param(asks("5"), reached("9"), id="a smaller number"),
        pytest.param(asks("9"), reached("10"), id="numbers are compared as numbers"),
        pytest.param(asks("step_5"), reached("9"), id="however the number is written"),
        pytest.param(asks("0"), reached("1"), id="a trainer that began again"),
        pytest.param(asks("5", run=None), reached("9", None), id="without a run"),
        pytest.param(asks("4", back_to="5"), reached("9"), id="another version is permitted"),
        pytest.param(
            asks("5", back_to="step_5"), reached("9"), id="the same number, written otherwise"
        ),
    ],
)
def test_an_older_version_of_a_run_is_refused(wanted, applied):
    problem = present(rollback_problem(wanted, applied, Pins()))

    assert problem.reason is ConditionReason.REWIND_REFUSED
    assert not problem.halt
    assert f"spec.version is {wanted.spec.version}" in problem.message
    assert f'spec.rollbackTo: "{wanted.spec.version}"' in problem.message
    assert "spec.runID" in problem.message


@pytest.mark.parametrize(
    ("wanted", "applied"),
    [
        pytest.param(asks("10"), reached("9"), id="forward"),
        pytest.param(asks("9"), reached("9"), id="the same once more"),
        pytest.param(
            asks("5", back_to="5"), reached("9"), id="back to the version that is permitted"
        ),
        pytest.param(asks("5", run="run-8"), reached("9"), id="another run"),
        pytest.param(asks("5", run=None), reached("9"), id="a version of no run"),
        pytest.param(
            asks("5", run=None, back_to="5"), reached("9", None), id="back without a run, permitted"
        ),
        pytest.param(asks("5"), reached("9", None), id="after weights of no run"),
        pytest.param(asks("good"), reached("9"), id="a label without a number"),
        pytest.param(asks("5"), reached("best"), id="after a label without a number"),
    ],
)
def test_other_versions_are_accepted(wanted, applied):
    assert rollback_problem(wanted, applied, Pins()) is None


def looked_at(version: str, *, back_to: str | None = None, run: str = "run-7") -> WeightsStatus:
    return WeightsStatus(desired_version=version, desired_run_id=run, rollback_to=back_to)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(
            asks("5", back_to="4", status=looked_at("4", back_to="4")), id="the next version"
        ),
        pytest.param(
            asks("7", back_to="4", status=looked_at("5", back_to="4")), id="the version after that"
        ),
        pytest.param(
            asks("step_5", back_to="step-4", status=looked_at("step-4", back_to="step-4")),
            id="however the number is written",
        ),
        pytest.param(
            asks("5", back_to="4", status=looked_at("9")),
            id="the version that is permitted was never looked at",
        ),
    ],
)
def test_versions_after_the_permitted_one_are_accepted_before_it_is_applied(wanted):
    assert rollback_problem(wanted, reached("9"), Pins()) is None


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(
            asks("3", back_to="4", status=looked_at("4", back_to="4")),
            id="one before the permitted version",
        ),
        pytest.param(asks("5", back_to="4"), id="of an object that was recreated"),
        pytest.param(
            asks("5", back_to="4", status=looked_at("5")),
            id="that was refused before leaves no permission",
        ),
        pytest.param(
            asks("6", back_to="4", status=looked_at("5")), id="later versions are refused"
        ),
        pytest.param(
            asks("5", back_to="4", status=looked_at("4", back_to="2")),
            id="after another permission",
        ),
        pytest.param(
            asks("5", back_to="4", status=looked_at("4", back_to="4", run="run-8")),
            id="after the permission of another run",
        ),
        pytest.param(
            asks("5", back_to="best", status=looked_at("best", back_to="best")),
            id="after a version without a number",
        ),
    ],
)
def test_the_permission_covers_nothing_else(wanted):
    problem = present(rollback_problem(wanted, reached("9"), Pins()))

    assert problem.reason is ConditionReason.REWIND_REFUSED


def pinned(*versions: str, run: str | None = "run-7", dropped_up_to: int | None = None) -> Pins:
    """`versions`: newest first. `dropped_up_to`: the mark of the run in the fleet's memory."""
    entries = tuple(
        PinnedWeights(version=v, run_id=run, digest=D1, source=target(v).source) for v in versions
    )
    marks = [] if dropped_up_to is None else [DroppedRun(run_id=run, up_to=dropped_up_to)]
    return Pins(entries=entries, memory=DroppedPins(runs=tuple(marks)))


@pytest.mark.parametrize(
    ("version", "pins", "number"),
    [
        pytest.param("50", pinned("final", "100", "50"), "100", id="the number before the name"),
        pytest.param("50", pinned("last", "final", "100"), "100", id="before two names"),
        pytest.param("50", pinned("final", "step_100"), "step_100", id="as it was written"),
        pytest.param("50", pinned("100"), "100", id="before a name without a pin"),
        pytest.param("50", pinned("final", dropped_up_to=100), "100", id="a number without a pin"),
    ],
)
def test_a_name_in_between_hides_no_older_version(version, pins, number):
    applied = "last" if pins.entries[0].version == "last" else "final"
    problem = present(rollback_problem(asks(version), reached(applied), pins))

    assert problem.reason is ConditionReason.REWIND_REFUSED
    assert f"version {number} " in problem.message
    assert rollback_problem(asks(version, back_to=version), reached(applied), pins) is None


@pytest.mark.parametrize(
    ("version", "pins"),
    [
        pytest.param("100", pinned("final", "100"), id="the same number"),
        pytest.param("101", pinned("101", "final", "100"), id="a newer one that is staged"),
        pytest.param("51", pinned("final", "50", "100"), id="after a rollback"),
        pytest.param("101", pinned("4300", "final", "100"), id="after one that was never applied"),
        pytest.param("50", pinned("final", "100", run="run-6"), id="after another run"),
        pytest.param("best", pinned("final", "100"), id="another name"),
        pytest.param(
            "50", pinned("final", run="run-6", dropped_up_to=100), id="dropped of another run"
        ),
    ],
)
def test_a_version_that_is_not_older_is_accepted_after_a_name(version, pins):
    assert rollback_problem(asks(version), reached("final"), pins) is None


class TestThePermissionInTheStatus:
    """`status.rollbackTo` carries it from one look to the next."""

    def look(self, wanted: WeightsView, serves: str) -> WeightsStatus:
        def worker(ordinal: int) -> WorkerBuilder:
            return make_worker(ordinal).serving(serves).reporting(run_id="run-7")

        recorded = AppliedWeights(version=serves, run_id="run-7", source=target(serves).source)
        status = FleetStatus(applied=recorded)
        fleet = make_fleet(worker(0), worker(1), wants=wanted, status=status)
        made = decide(fleet, default_image="image", now=NOW)
        assert made.defects == ()
        return made.weights[wanted.uid]

    def refusal(self, status: WeightsStatus) -> ConditionReason | None:
        found = condition_of(status.conditions, ConditionType.STALLED)
        return found.reason if found is not None else None

    def test_the_permission_stays_until_a_version_is_applied(self):
        first = self.look(asks("41", back_to="41", status=looked_at("60")), "60")
        then = self.look(asks("42", back_to="41", status=first), "60")
        assert (self.refusal(first), self.refusal(then)) == (None, None)
        assert (first.rollback_to, then.rollback_to) == ("41", "41")

        arrived = self.look(asks("42", back_to="41", status=then), "42")
        assert (arrived.phase, arrived.rollback_to) == (RolloutPhase.APPLIED, None)

    def test_the_permission_starts_once_both_patches_are_seen(self):
        first = self.look(asks("42", back_to="41", status=looked_at("60")), "60")
        then = self.look(asks("42", back_to="41", status=first), "60")

        assert (self.refusal(first), self.refusal(then)) == (None, None)

    def test_a_recreated_object_stays_refused(self):
        status = WeightsStatus()
        for version in ("42", "42", "43"):
            status = self.look(asks(version, back_to="41", status=status), "60")
            assert self.refusal(status) is ConditionReason.REWIND_REFUSED
            assert status.rollback_to is None

    def test_the_permission_ends_with_its_field(self):
        first = self.look(asks("41", back_to="41", status=looked_at("60")), "60")
        then = self.look(asks("42", status=first), "60")

        assert self.refusal(then) is ConditionReason.REWIND_REFUSED
        assert then.rollback_to is None
