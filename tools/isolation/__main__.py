"""`make isolation`: one tenant attacks another one with all that it may write, send and read.

The attacks are the cluster tests with the marker `attack`, which assert the limits. Here what they measure goes to
bench/results/isolation.json and docs/reliability.md. Attacks that were not chosen keep their last figures, with the
day and the machine of these.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_worker.report import REPOSITORY, machine
from isolation.rows import ROWS
from isolation.table import table, write

RESULTS = REPOSITORY / "bench" / "results" / "isolation.json"
PAGE = REPOSITORY / "docs" / "reliability.md"
TESTS = REPOSITORY / "tests" / "cluster"


def main() -> int:
    """Read the command line, attack, write the figures, print the table. Returns: the exit code of the tests."""
    parser = argparse.ArgumentParser(prog="make isolation", description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of tests (all)")
    only = str(parser.parse_args().only)
    begun = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine()}
    with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
        chosen = ("-m", "attack", *(("-k", only) if only else ()))
        done = subprocess.run(
            (sys.executable, "-m", "pytest", str(TESTS), *chosen, "-p", "no:randomly"),
            env=os.environ | {"RLFLEET_ISOLATION_RESULTS": folder},
            cwd=REPOSITORY,
            check=False,
        )
        measured = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    if not measured:
        print("isolation: nothing was measured", file=sys.stderr)
        return done.returncode or 1
    last = json.loads(RESULTS.read_text())["attacks"] if RESULTS.exists() else []
    results = merged(last, measured, begun)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    write(PAGE, results)
    print(table(results))
    return done.returncode


def merged(
    last: list[dict[str, Any]], measured: list[dict[str, Any]], begun: dict[str, Any]
) -> dict[str, Any]:
    """The figures of all attacks: the new ones, and the last ones of those that were not chosen.

    `begun`: date and machine of the new ones.
    """
    found = {each["attack"]: each for each in (*last, *(each | begun for each in measured))}
    return {
        "limits_mib": measured[0]["limits_mib"],
        "attacks": [
            {key: value for key, value in found[row.attack].items() if key != "limits_mib"}
            for row in ROWS
            if row.attack in found
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
