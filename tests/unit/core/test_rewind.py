"""Within one run numeric versions only grow, unless going back is said."""

from __future__ import annotations

import pytest
from tests.support.builders import make_weights, target

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.observed import Target, WeightsView
from fleet_operator.core.rewind import number_of, rewind_problem


def asks(version: str, *, run: str | None = "run-7", back_to: str | None = None) -> WeightsView:
    view = make_weights(version)
    update = {"run_id": run, "rollback_to": back_to}
    object.__setattr__(view, "spec", view.spec.model_copy(update=update))
    return view


def reached(version: str, run: str | None = "run-7") -> Target:
    return Target(version=version, source=target(version).source, run_id=run)


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("43", 43),
        ("0", 0),
        ("007", 7),
        ("step_43", 43),
        ("step-43", 43),
        ("step43", None),
        ("43a", None),
        ("v43", None),
        ("4.3", None),
        ("base", None),
        ("1" * 18, int("1" * 18)),
        ("1" * 19, None),
    ],
)
def test_a_version_with_a_number_is_known_by_it(version, number):
    assert number_of(version) == number


@pytest.mark.parametrize(
    ("wanted", "applied"),
    [
        pytest.param(asks("5"), reached("9"), id="a smaller number"),
        pytest.param(asks("9"), reached("10"), id="numbers are no texts"),
        pytest.param(asks("step_5"), reached("9"), id="however the number is written"),
        pytest.param(asks("0"), reached("1"), id="a trainer that began again"),
        pytest.param(asks("4", back_to="5"), reached("9"), id="another version is permitted"),
        pytest.param(
            asks("5", back_to="step_5"), reached("9"), id="the same number, written otherwise"
        ),
    ],
)
def test_going_back_within_a_run_is_refused(wanted, applied):
    problem = rewind_problem(wanted, applied)

    assert problem is not None
    assert problem.reason is ConditionReason.REWIND_REFUSED
    assert not problem.halt
    assert f"asks for {wanted.spec.version}" in problem.message
    assert f'spec.rollbackTo: "{wanted.spec.version}"' in problem.message


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
        pytest.param(asks("5", run=None), reached("9", None), id="where nobody speaks of runs"),
        pytest.param(asks("5"), reached("9", None), id="after weights of no run"),
        pytest.param(asks("good"), reached("9"), id="a label without a number"),
        pytest.param(asks("5"), reached("best"), id="after a label without a number"),
    ],
)
def test_everything_else_is_taken(wanted, applied):
    assert rewind_problem(wanted, applied) is None
