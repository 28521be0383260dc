"""Run the tests of docs/reference/compatibility.md and record their results.

    python3 tools/compatibility_runs.py               all runs (`make compatibility`)
    python3 tools/compatibility_runs.py --only NAME   one of them; results of the others stay

The results are in bench/results/compatibility.json. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import processor
from compatibility_rows import (
    ENGINE_TIER,
    PYTHON,
    REPOSITORY,
    RUNS,
    TIER,
    Row,
    Run,
    all_rows,
    vllm_version,
)
from processor import Processor

RESULTS = REPOSITORY / "bench/results/compatibility.json"
_TESTS_FAILED = 1
"""Exit code of pytest; a higher one means that it could not run them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of the tests of a row."""

    part: str
    version: str
    run: str
    passed: int
    failed: int
    skipped: int
    date: str

    @property
    def is_good(self) -> bool:
        """Whether tests passed and no test failed."""
        return self.passed > 0 and self.failed == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierResult(Result):
    """The outcome of the engine tier on a kind of processor, which is the `part`.

    Fields:
        instructions: those by which vLLM chooses kernels.
        failures: names of the tests that failed.
        note: what to know of these failures, written by hand. The next run removes it.
    """

    instructions: tuple[str, ...]
    failures: tuple[str, ...] = ()
    note: str = ""


def outcomes(report: str) -> dict[str, str]:
    """Read a JUnit report of pytest: `passed`, `failed` or `skipped` by module and test."""
    found: dict[str, str] = {}
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}"
        children = {child.tag for child in case}
        if children & {"failure", "error"}:
            found[name] = "failed"
        else:
            found[name] = "skipped" if "skipped" in children else "passed"
    return found


def results(
    name: str, tests: Mapping[str, str], rows: Iterable[Row], date: str
) -> tuple[Result, ...]:
    """Count the outcomes of a run for each of its rows."""
    made = []
    for row in rows:
        if row.run != name:
            continue
        counted = Counter(how for test, how in tests.items() if re.search(row.tests, test))
        made.append(
            Result(
                part=row.part,
                version=row.version,
                run=name,
                passed=counted["passed"],
                failed=counted["failed"],
                skipped=counted["skipped"],
                date=date,
            )
        )
    return tuple(made)


def tier_result(tests: Mapping[str, str], where: Processor, date: str) -> TierResult:
    """Count the outcomes of the engine tier on a processor."""
    row = Row(part=where.name, version=vllm_version(), run=ENGINE_TIER)
    (counted,) = results(ENGINE_TIER, tests, [row], date)
    failed = (test.partition("::")[2] for test, how in tests.items() if how == "failed")
    names = tuple(sorted(name.partition("@")[0] for name in failed))  # after @ is a group of xdist
    values = {each.name: getattr(counted, each.name) for each in dataclasses.fields(counted)}
    return TierResult(**values, instructions=where.instructions, failures=names)


def load(path: Path = RESULTS) -> tuple[Result, ...]:
    """Read the recorded results of parts; empty without any."""
    return tuple(Result(**row) for row in _recorded(path, "rows"))


def load_tier(path: Path = RESULTS) -> tuple[TierResult, ...]:
    """Read the recorded results of the engine tier, by processor."""
    found = []
    for row in _recorded(path, ENGINE_TIER):
        lists = {name: tuple(row[name]) for name in ("instructions", "failures")}
        found.append(TierResult(**(row | lists)))
    return tuple(found)


def _recorded(path: Path, key: str) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()).get(key, [])) if path.exists() else []


def record(made: Iterable[Result], path: Path = RESULTS) -> None:
    """Write results over those of the same parts or processors, in the order of the page."""
    made = list(made)
    tier = {each.part: each for each in load_tier(path)}
    tier |= {each.part: each for each in made if isinstance(each, TierResult)}
    kept = {result.part: result for result in (*load(path), *made)}
    rows = [asdict(kept[row.part]) for row in all_rows() if row.part in kept]
    processors = [asdict(tier[name]) for name in sorted(tier)]
    path.write_text(json.dumps({"rows": rows, ENGINE_TIER: processors}, indent=2) + "\n")


def run_tests(run: Run, report: Path) -> dict[str, str]:
    """Run the test files of a run, and return the outcomes.

    Errors: SystemExit if pytest could not run them.
    """
    words = ("-m", "pytest", "-p", "no:randomly", f"--junitxml={report}", *run.options, *run.files)
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, env=os.environ | run.environment, check=False
    )
    if done.returncode not in {0, _TESTS_FAILED}:
        sys.exit(f"pytest could not run {' '.join(run.files)}: exit code {done.returncode}")
    return outcomes(report.read_text())


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description="Record the results of the compatibility page.")
    runs = RUNS | {ENGINE_TIER: TIER}
    parser.add_argument("--only", choices=runs, metavar="|".join(runs), help="this run alone")
    only = parser.parse_args().only
    here = ".".join(map(str, sys.version_info[:2]))
    if here != PYTHON:
        sys.exit(f"results are recorded with Python {PYTHON}, and this is {here}")
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for name in [only] if only else runs:
            tests = run_tests(runs[name], Path(folder, f"{name}.xml"))
            today = dt.datetime.now(dt.UTC).date().isoformat()
            made = results(name, tests, all_rows(), today)
            if name == ENGINE_TIER:
                made = (tier_result(tests, processor.here(), today),)
            record(made)
            bad += [f"{one.part} {one.version}" for one in made if not one.is_good]
    if bad:
        sys.exit(f"tests failed, or none passed: {', '.join(bad)}")


if __name__ == "__main__":
    main()
