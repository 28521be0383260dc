"""The page of versions is written from recorded results, and says which are out of date.

`make lint` compares the page with what its tool writes, and the results with the pinned versions.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import compatibility
import compatibility_rows
import compatibility_runs
from compatibility_rows import Row
from compatibility_runs import Result, TierResult
from processor import Processor

REPOSITORY = Path(__file__).parents[2]
TRAINERS = REPOSITORY / "tests/engine/test_trainers.py"
REPORT = """\
<testsuites><testsuite name="pytest" tests="6">
  <testcase classname="tests.a" name="test_good[x]" time="1"/>
  <testcase classname="tests.a" name="test_good[y]" time="1"><system-out>words</system-out></testcase>
  <testcase classname="tests.a" name="test_wrong"><failure message="no">assert</failure></testcase>
  <testcase classname="tests.b" name="test_left"><skipped type="pytest.skip" message="gpu"/></testcase>
  <testcase classname="tests.b" name="test_ends_badly"/>
  <testcase classname="tests.b" name="test_ends_badly"><error message="teardown"/></testcase>
</testsuite></testsuites>
"""
ROW = Row(part="helm", version="4.2.4", run="contracts")
GOOD = Result(
    part="helm",
    version="4.2.4",
    run="contracts",
    passed=7,
    failed=0,
    skipped=0,
    date="2026-01-02",
)


@pytest.mark.parametrize("name", [name for name, _ in compatibility_rows.CALLS])
def test_the_calls_of_a_listed_trainer_are_tested(name: str) -> None:
    tests = re.findall(r"^def (test_\w+)", TRAINERS.read_text(), re.MULTILINE)

    assert any(name.lower().replace("-", "_") in test for test in tests)


def test_the_oldest_kubernetes_that_runs_is_of_the_minor_version_that_the_chart_declares() -> None:
    (row,) = [row for row in compatibility_rows.parts() if row.part == "Kubernetes, oldest"]

    least = row.declared.removeprefix(">=").rpartition(".")[0]
    assert row.version.startswith(f"{least}.")


def test_the_test_files_of_each_run_exist() -> None:
    runs = [*compatibility_rows.RUNS.values(), compatibility_rows.TIER]
    files = [file for run in runs for file in run.files]

    assert [file for file in files if not (REPOSITORY / file).exists()] == []


def test_each_part_has_one_row_and_a_run() -> None:
    rows = compatibility_rows.all_rows()

    assert len({row.part for row in rows}) == len(rows)
    assert {row.run for row in rows} == set(compatibility_rows.RUNS)


def test_a_report_of_pytest_says_which_tests_passed_failed_and_were_skipped() -> None:
    assert compatibility_runs.outcomes(REPORT) == {
        "tests.a::test_good[x]": "passed",
        "tests.a::test_good[y]": "passed",
        "tests.a::test_wrong": "failed",
        "tests.b::test_left": "skipped",
        "tests.b::test_ends_badly": "failed",
    }


@pytest.mark.parametrize(
    ("tests", "counts"),
    [("", (2, 2, 1)), (r"a::test_good\[x\]", (1, 0, 0)), ("nothing", (0, 0, 0))],
)
def test_a_row_counts_its_own_tests_of_a_run(tests: str, counts: tuple[int, int, int]) -> None:
    row = dataclasses.replace(ROW, tests=tests)
    other = dataclasses.replace(ROW, part="kopf", run="engine")

    (result,) = compatibility_runs.results(
        "contracts", compatibility_runs.outcomes(REPORT), [row, other], "2026-01-02"
    )

    assert (result.passed, result.failed, result.skipped) == counts
    assert (result.part, result.version, result.date) == ("helm", "4.2.4", "2026-01-02")


def test_a_run_replaces_its_own_results_and_keeps_those_of_other_runs(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    other = dataclasses.replace(GOOD, part="kopf", run="kubernetes")
    compatibility_runs.record([GOOD, other], file)

    newer = dataclasses.replace(GOOD, passed=8)
    compatibility_runs.record([newer], file)

    assert compatibility_runs.load(file) == (newer, other)


def test_a_recorded_version_that_is_not_the_pinned_one_is_out_of_date() -> None:
    older = dataclasses.replace(GOOD, version="4.2.3")

    (line,) = compatibility.outdated([ROW], [older])

    assert line == (
        "helm 4.2.4 is pinned, but the recorded result is of 4.2.3: "
        "run `make compatibility ONLY=contracts`"
    )
    assert compatibility.outdated([ROW], [GOOD]) == []


# --- processors -----------------------------------------------------------------------------------

VLLM = compatibility_rows.vllm_version()
XEON = Processor("Xeon", ("avx512f", "amx_tile"))


def tier_result(report: str = REPORT) -> TierResult:
    tests = compatibility_runs.outcomes(report)
    return compatibility_runs.tier_result(tests, XEON, "2026-01-02")


def test_the_engine_tier_is_recorded_with_the_processor_and_what_failed_on_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "results.json"
    compatibility_runs.record([GOOD, tier_result(REPORT.replace("wrong", "wrong@group"))], file)

    (recorded,) = compatibility_runs.load_tier(file)
    assert (recorded.part, recorded.instructions) == (XEON.name, XEON.instructions)
    assert (recorded.version, recorded.passed, recorded.failed) == (VLLM, 2, 2)
    assert recorded.failures == ("test_ends_badly", "test_wrong")
    assert compatibility_runs.load(file) == (GOOD,)


def test_a_run_replaces_the_result_of_its_processor_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    noted = dataclasses.replace(tier_result(), note="Mended since.")
    other = dataclasses.replace(noted, part="EPYC")
    compatibility_runs.record([noted, other], file)

    compatibility_runs.record([tier_result()], file)

    assert compatibility_runs.load_tier(file) == (other, tier_result())


def test_an_engine_tier_that_no_processor_ran_with_the_pinned_vllm_is_out_of_date() -> None:
    (line,) = compatibility.outdated_tier([dataclasses.replace(tier_result(), version="0.1")])

    assert line.endswith("run `make compatibility ONLY=engine-tier`")
    assert compatibility.outdated_tier([tier_result()]) == []
