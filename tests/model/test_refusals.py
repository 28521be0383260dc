"""Promise 10: every refusal, foreign object, unreadable object and defect is said, while pauses are
renewed; and mistakes that break it are caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.model.refusals import refused_history
from tests.model.test_mutants import ROOT, Mutant, a_copy_with

BLOCKS = 6
HISTORIES_PER_BLOCK = 8
HISTORIES = 40

MUTANTS = [
    Mutant(
        10,
        "a trouble that is noted is forgotten",
        "runtime/troubles.py",
        "parts[part] = _Failing(error, before.since if before else now)",
        "parts.pop(part, now)",
    ),
    Mutant(
        10,
        "a pod's name that is taken is not looked at",
        "runtime/objects.py",
        "await self._check_name(pods, action.manifest)",
        "pass",
    ),
    Mutant(
        10,
        "troubles become no condition",
        "core/troubles.py",
        "    if not troubles:\n        return status\n",
        "    if now:\n        return status\n",
    ),
    Mutant(
        10,
        "a list or a watch that is refused is no trouble of the fleets that it serves",
        "runtime/troubles.py",
        "if read.namespace in {None, key[0]}",
        "if read.namespace not in {None, key[0]}",
    ),
    Mutant(
        10,
        "a refused status of one object is not said on the other",
        "runtime/troubles.py",
        "concerns_weights=part.startswith(STATUS),",
        "concerns_weights=False,",
    ),
]


@pytest.mark.no_cover
@pytest.mark.parametrize("block", range(BLOCKS))
def test_everything_that_is_refused_is_said_and_is_unsaid_when_it_heals(block):
    for seed in range(1000 * block, 1000 * block + HISTORIES_PER_BLOCK):
        refused_history(seed)


@pytest.mark.no_cover
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.mistake}")
def test_a_mistake_is_caught_as_promise_ten(mutant: Mutant, tmp_path: Path) -> None:
    assert found(a_copy_with(mutant, tmp_path)).startswith("promise 10: ")


def test_the_operator_as_it_is_keeps_the_promise():
    assert found(ROOT / "operator", histories=3) == "every promise held\n"


def found(
    source: Path,
    *,
    histories: int = HISTORIES,
    module: str = "tests.model.refusals",
    promise: int = 10,
) -> str:
    """What the histories of a module say with this source of `fleet_operator`."""
    path = os.pathsep.join(map(str, (source, ROOT / "worker", ROOT)))
    command = [sys.executable, "-m", module, "--promise", str(promise)]
    done = subprocess.run(
        [*command, "--histories", str(histories)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
