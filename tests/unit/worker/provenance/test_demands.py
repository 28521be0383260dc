"""Requests that demand certain weights: the rule."""

from __future__ import annotations

import pytest

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.provenance.demands import Demand, DemandError, demand_of


@pytest.mark.parametrize(
    ("exact", "minimum", "version", "met"),
    [
        pytest.param(None, None, "1", True, id="nothing is demanded"),
        pytest.param(None, None, None, True, id="nothing is demanded of weights without a name"),
        pytest.param("43", None, "43", True, id="the very version"),
        pytest.param("43", None, "44", False, id="a later one than the very version"),
        pytest.param("43", None, "step_43", False, id="another spelling is another label"),
        pytest.param("base", None, "base", True, id="a label without a number"),
        pytest.param("43", None, None, False, id="untrusted weights"),
        pytest.param(None, "43", "43", True, id="the least that will do"),
        pytest.param(None, "43", "44", True, id="a later one"),
        pytest.param(None, "43", "42", False, id="an earlier one"),
        pytest.param(None, "9", "10", True, id="numbers are compared and not letters"),
        pytest.param(None, "step_9", "step_10", True, id="numbers of steps"),
        pytest.param(None, "43", "step-44", True, id="a number is a number"),
        pytest.param(None, "0", "base", False, id="a label without a number comes before all"),
        pytest.param(None, "43", None, False, id="weights without a name come before all"),
        pytest.param("43", "40", "43", True, id="both, and both are met"),
        pytest.param("43", "44", "43", False, id="both, and one is not met"),
    ],
)
def test_a_version_meets_or_fails_a_demand(
    exact: str | None, minimum: str | None, version: str | None, met: bool
) -> None:
    assert demand_of(exact, minimum).is_met_by(version and WeightName(version)) is met


@pytest.mark.parametrize("minimum", ["base", "", "4.5", "-1", "step_", "9" * 19])
def test_a_minimum_must_be_a_numbered_version(minimum: str) -> None:
    with pytest.raises(DemandError, match="numbered"):
        demand_of(None, minimum)


def test_an_empty_version_is_not_a_demand() -> None:
    with pytest.raises(DemandError, match="empty"):
        demand_of(" ", None)


def test_a_demand_describes_itself() -> None:
    assert str(Demand()) == "any version"
    assert str(demand_of("a", "step_7")) == "version a and version 7 or later"


OLD, NEW, NONE = WeightName("40", "run-7"), WeightName("3", "run-8"), WeightName("40")


@pytest.mark.parametrize(
    ("exact", "minimum", "run", "met"),
    [
        (None, None, "run-8", [NEW]),
        (None, "3", "run-8", [NEW]),
        (None, "3", "run-7", [OLD]),
        (None, "4", "run-8", []),
        ("40", None, "run-7", [OLD]),
        ("40", None, "run-8", []),
        ("40", None, None, [OLD, NONE]),
    ],
)
def test_numbers_are_compared_within_a_run(
    exact: str | None, minimum: str | None, run: str | None, met: list[WeightName]
) -> None:
    demand = demand_of(exact, minimum, run)

    assert [name for name in (OLD, NEW, NONE) if demand.is_met_by(name)] == met


def test_a_request_accepted_for_one_run_is_not_compared_with_the_numbers_of_another() -> None:
    demand = demand_of(None, "3").bound_to(WeightName("3", "run-8"))

    assert demand.is_met_by(WeightName("4", "run-8"))
    assert not demand.is_met_by(WeightName("40", "run-7"))


@pytest.mark.parametrize("began", [WeightName("40"), WeightName("10", None, "1" * 12)])
def test_no_run_is_a_run_of_its_own_and_not_any_run(began: WeightName) -> None:
    demand = demand_of(None, "3").bound_to(began)

    assert demand.is_met_by(WeightName("41"))
    assert not demand.is_met_by(WeightName("40", "run-8"))
    assert not demand.is_met_by(WeightName("5", "run-8"))
    assert str(began) in str(demand)


def test_a_run_that_the_request_names_holds_whatever_it_began_with() -> None:
    demand = demand_of(None, "3", "run-8").bound_to(WeightName("3", "run-8"), by_scope=True)

    assert demand.is_met_by(WeightName("4", "run-8", scope="/elsewhere"))


STEP_3, STEP_4 = WeightName("3", scope="/run-8"), WeightName("4", scope="/run-8")
STEP_40 = WeightName("40", scope="/run-7")


@pytest.mark.parametrize(("by_scope", "met"), [(True, [STEP_4]), (False, [STEP_4, STEP_40])])
def test_directories_count_as_runs_where_a_trainer_names_no_runs(
    by_scope: bool, met: list[WeightName]
) -> None:
    demand = demand_of(None, "3").bound_to(STEP_3, by_scope=by_scope)

    assert [name for name in (STEP_4, STEP_40) if demand.is_met_by(name)] == met


def test_the_same_bytes_in_two_directories_are_one_set_of_weights() -> None:
    demand = demand_of("4", None).bound_to(STEP_4, by_scope=True)

    assert demand.is_met_by(WeightName("4", scope="/elsewhere"))


def test_an_exact_version_is_one_set_of_weights() -> None:
    one, other = WeightName("40", "run-7", "1" * 12), WeightName("40", "run-7", "2" * 12)
    demand = demand_of("40", None).bound_to(one)

    assert demand.is_met_by(one)
    assert not demand.is_met_by(other)
    assert "1" * 12 in str(demand)


def test_an_empty_run_is_not_a_demand() -> None:
    with pytest.raises(DemandError, match="x-weight-run is empty"):
        demand_of(None, None, " ")
