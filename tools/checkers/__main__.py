"""Check the workflows and the alerts: `python -m checkers workflows alerts`.

`build` makes the programs alone. Exit code 0 without a finding, 1 with one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from checkers import programs
from devcluster.programs import ensure_part
from envs import REPOSITORY, interpreter_of

RULES = "charts/rlfleet/files/alerts.yaml"
CASES = "tests/contract/alerts_test.yaml"


def workflows() -> Iterator[programs.Done]:
    """Check the workflows of `.github`."""
    files = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
    yield programs.actionlint(files)
    yield programs.zizmor(files)


def alerts() -> Iterator[programs.Done]:
    """Check the alerts of the chart, and play what fires and ends them."""
    yield programs.promtool("check", "rules", RULES)
    yield programs.promtool("test", "rules", CASES)


def build() -> Iterator[programs.Done]:
    """Make the programs, and the environment of those that come as wheels."""
    for part in programs.PARTS:
        ensure_part(part)
    interpreter_of("workflows")
    yield from ()


CHECKS = {"workflows": workflows, "alerts": alerts, "build": build}


def main() -> int:
    """Run the named checks. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="checkers", description="Check workflows and alerts.")
    parser.add_argument("checks", nargs="+", choices=CHECKS)
    named = parser.parse_args().checks
    failed = [done for name in named for done in CHECKS[name]() if done.returncode]
    for done in failed:
        print(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
