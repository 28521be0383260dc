"""The harness bites: for every promise, one-line mistakes in the planner that it catches.

Each mistake is made in a copy of the package. A process of its own runs random histories on it until
the promise breaks that the mistake must break; other promises do not count. A mutant whose line is
gone fails its test, so that this list keeps up with the code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.model.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PACKAGES = {"fleet_operator": ROOT / "operator", "fleet_worker": ROOT / "worker"}
HISTORIES = 200


def cases() -> list[object]:
    """One mutant of each promise, and those that a story kills, are short; the others hunt for long."""
    first = {m.promise: m for m in reversed(MUTANTS)}
    return [
        pytest.param(
            m,
            id=f"{m.promise}: {m.mistake}",
            marks=() if m.story or first[m.promise] is m else pytest.mark.long,
        )
        for m in MUTANTS
    ]


@pytest.mark.parametrize("mutant", cases())
def test_a_mistake_is_caught_as_the_promise_that_it_breaks(mutant, tmp_path):
    mutated = a_copy_with(mutant, tmp_path)

    assert breaks(
        mutated,
        mutant.rollout,
        promise=mutant.promise,
        story=mutant.story,
        first_seed=mutant.first_seed,
    )


def test_the_planner_as_it_is_breaks_none_of_them():
    assert not breaks(ROOT / "operator", None, histories=3)


def test_a_break_of_another_promise_does_not_count(tmp_path):
    mutant = next(m for m in MUTANTS if m.promise == 7)
    mutated = a_copy_with(mutant, tmp_path)

    assert breaks(mutated, mutant.rollout, histories=3)
    assert not breaks(mutated, mutant.rollout, promise=1, histories=3)


def test_every_promise_has_its_mistakes():
    counts = Counter(m.promise for m in MUTANTS)

    assert set(counts) == {*range(1, 10), 11, 12, 14, 15, 17, 18}
    assert min(counts.values()) >= 2


def a_copy_with(mutant: Mutant, folder: Path) -> Path:
    """A folder with a package in which the mistake was made."""
    package = PACKAGES[mutant.package] / mutant.package
    text = (package / mutant.file).read_text()
    assert text.count(mutant.line) == 1, "the line is not there any more, or not once"
    copied = folder / mutant.package
    shutil.copytree(package, copied, ignore=shutil.ignore_patterns("*.pyc"))
    (copied / mutant.file).write_text(text.replace(mutant.line, mutant.instead))
    return folder


def breaks(
    source: Path,
    rollout: dict[str, Any] | None,
    *,
    promise: int | None = None,
    histories: int = HISTORIES,
    story: str | None = None,
    first_seed: int | None = None,
) -> bool:
    """Whether the promise breaks with this source of a package; None is any of them."""
    command = [sys.executable, "-m", "tests.model.hunt", "--histories", str(histories)]
    command += ["--story", story] if story is not None else []
    command += ["--first", str(first_seed)] if first_seed is not None else []
    command += ["--promise", str(promise)] if promise is not None else []
    command += ["--rollout", json.dumps(rollout)] if rollout is not None else []
    path = os.pathsep.join(map(str, (source, *PACKAGES.values(), ROOT)))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.match(r"promise (\d+): ", done.stdout)
    assert found or done.stdout == "every promise held\n", done.stdout
    return found is not None
