"""The harness bites: for every promise, one-line mistakes in the planner that it catches.

Each mistake is made in a copy of the package, and random histories are run on it in a process of its
own until the promise breaks that the mistake betrays; that others break, too, is no catch. A line
that is no longer there fails the test, so that this list keeps up with the code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"fleet_operator": ROOT / "operator", "fleet_worker": ROOT / "worker"}
HISTORIES = 200


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Fields:
        package: where the file is.
        rollout: settings under which it shows soonest.
        story: tells of it; luck would take too long.
        first_seed: a history that shows it, tried first; after a change of the planner or of the
            simulator another one may.
    """

    promise: int
    mistake: str
    file: str
    line: str
    instead: str
    rollout: dict[str, Any] | None = field(default=None)
    story: str | None = None
    first_seed: int | None = None
    package: str = "fleet_operator"


SYNCHRONIZED: dict[str, Any] = {}
SHORT = {"timeouts": {"stageSeconds": 60, "pauseSeconds": 20, "loadSeconds": 40}}
ROLLING = {"strategy": "Rolling", "maxUnavailable": 1}
CANARY = {"strategy": "Canary"}

MUTANTS = [
    Mutant(
        1,
        "a version is looked for where the one before it lies",
        "core/observed.py",
        "source = spec.source.resolve(spec.version)",
        "source = spec.source.resolve(self.status.applied_version or spec.version)",
        SYNCHRONIZED,
    ),
    Mutant(
        1,
        "a canary that fails is said to have passed",
        "core/strategies/canary.py",
        "passed=not bad,",
        "passed=True,",
        CANARY,
        first_seed=56,
    ),
    Mutant(
        2,
        "the barrier does not wait for silent workers",
        "core/strategies/synchronized.py",
        "behind = tuple(m for m in view.members if not m.has_loaded(goal))",
        "behind = tuple(m for m in view.members if not m.has_loaded(goal)"
        " and m.standing is not Standing.UNKNOWN)",
        SYNCHRONIZED,
    ),
    Mutant(
        2,
        "a hung worker is not expected to come back",
        "core/observed.py",
        "return self.state.admitted or opened_since",
        "return False",
        SYNCHRONIZED,
    ),
    Mutant(
        2,
        "one that generates something else is not set apart",
        "core/one_voice.py",
        'if not m.operation.startswith("fence")',
        "if False",
        SYNCHRONIZED,
        first_seed=203,
    ),
    Mutant(
        2,
        "joiners open while members of the old version still generate",
        "core/strategies/synchronized.py",
        "fallback=goal, open_now=agree, coming=coming)",
        "fallback=goal, open_now=True, coming=coming)",
        story="a_status_that_was_lost",
    ),
    Mutant(
        3,
        "nobody is ever let go, only renewed",
        "core/strategies/synchronized.py",
        "if m.state is not None and not m.operation",
        "if m.state is not None and m.operation",
        SHORT,
    ),
    Mutant(
        3,
        "a pause is asked for that lasts ten times as long as is promised",
        "core/calls.py",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=10 * LEASE_SECONDS,\n    )\n\n\ndef load(",
        SYNCHRONIZED,
    ),
    Mutant(
        4,
        "one worker too many is replaced at a time",
        "core/fleet_plan.py",
        "if allowed <= 0:",
        "if allowed < 0:",
    ),
    Mutant(
        4,
        "workers that are away do not count while others swap",
        "core/strategies/gradual.py",
        "idle = idle[: max(0, at_once - away)]",
        "idle = idle[:at_once]",
        ROLLING,
    ),
    Mutant(
        5,
        "a run may go back to any step",
        "core/rewind.py",
        "if wanted is None or reached is None or wanted >= reached:",
        "if True:",
        story="a_run_that_starts_again",
    ),
    Mutant(
        5,
        "what was served before is not remembered",
        "core/applied.py",
        "known.insert(0, Target.recorded(recorded))",
        "known.append(Target.recorded(recorded))",
    ),
    Mutant(
        6,
        "nobody is let in who has adapters to get",
        "core/joiners.py",
        "if admission.open_now and equipped and not joiner.operation:",
        "if admission.open_now and not equipped and not joiner.operation:",
    ),
    Mutant(
        6,
        "a version is abandoned at the deadline of a phase because its checkpoint does not exist yet",
        "core/awaiting.py",
        "phase=RolloutPhase.PENDING,",
        "phase=step.phase,",
        story="a_checkpoint_that_comes_late",
    ),
    Mutant(
        6,
        "a pod that a queue holds back counts as away",
        "core/observed.py",
        "return max(replicas - gated, min(replicas, len(pods) - gated))",
        "return replicas",
        story="a_pod_that_a_queue_holds_back",
    ),
    Mutant(
        6,
        "a worker that failed is never made anew",
        "core/fleet_plan.py",
        "recycle(observed, [w for w in failed if w.pod.uid not in lost], now=now)",
        "recycle(observed, [], now=now)",
    ),
    Mutant(
        6,
        "workers beyond the replicas bridge an update that is held",
        "core/fleet_plan.py",
        "if observed.spec.update.is_held or waits_for <= 0:",
        "if waits_for <= 0:",
        first_seed=56,
    ),
    Mutant(
        6,
        "the first worker is never made",
        "core/fleet_plan.py",
        "missing = missing[:CREATE_AT_ONCE]",
        "missing = missing[1:CREATE_AT_ONCE]",
    ),
    Mutant(
        6,
        "nobody is ever late",
        "core/strategies/shared.py",
        "if view.phase is not phase or view.phase_seconds <= limit_seconds:",
        "if True:",
        SYNCHRONIZED,
    ),
    Mutant(
        6,
        "time without a leader counts",
        "core/rollout_plan.py",
        "phase_seconds=weights.watched.phase_seconds if weights else 0,",
        "phase_seconds=(now - weights.status.phase_started_at).total_seconds()"
        " if weights and weights.status.phase_started_at else 0,",
        story="an_outage_of_130_seconds",
    ),
    Mutant(
        6,
        "deadlines are counted on a wall clock",
        "core/rollout_plan.py",
        "phase_seconds=weights.watched.phase_seconds if weights else 0,",
        "phase_seconds=(now - weights.status.phase_started_at).total_seconds()"
        " if weights and weights.status.phase_started_at else 0,",
        story="a_clock_that_is_ahead",
    ),
    Mutant(
        5,
        "refused as old, a leader raises its own term",
        "runtime/epochs.py",
        "self._refused[key] = max(obeyed.term, self._refused.get(key, 0))",
        "self._floors[key] = obeyed.term",
        story="a_leader_whose_clock_stood_still",
    ),
    Mutant(
        5,
        "a deposed leader writes its status over that of its successor",
        "runtime/stored_versions.py",
        'return "" if known == self._refused.get(uid) else known',
        'return ""',
        story="a_status_that_is_written_late",
    ),
    Mutant(
        6,
        "what was refused before the last refusal is forgotten",
        "core/calls.py",
        "state.stage_failure, *state.earlier_stage_failures)",
        "state.stage_failure)",
        story="a_fleet_without_a_good_version",
    ),
    Mutant(
        6,
        "a swap is late by the age of an old answer",
        "core/strategies/gradual.py",
        "+ worker.silent_seconds",
        "+ worker.state_age_seconds",
        story="an_answer_that_is_20_seconds_old",
    ),
    Mutant(
        7,
        "a rollout begins anew with every look",
        "core/weights_status.py",
        "started_at = now if fresh or before.started_at is None else before.started_at",
        "started_at = now",
    ),
    Mutant(
        7,
        "a phase begins anew with every look",
        "core/weights_status.py",
        "phase_started_at=now if moved else before.phase_started_at,",
        "phase_started_at=now,",
    ),
    Mutant(
        8,
        "a pause cuts requests short whatever its mode",
        "core/calls.py",
        "mode=PAUSE_MODES[settings.pause.mode],\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        "mode=PauseMode.ABORT,\n        drain_timeout_seconds=settings.pause.drain_timeout_seconds,"
        "\n        lease_seconds=LEASE_SECONDS,\n    )\n\n\ndef load(",
        SYNCHRONIZED,
    ),
    Mutant(
        8,
        "a pause is not renewed while a load runs",
        "core/calls.py",
        "and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS",
        "and not worker.operation and lease_remaining_seconds(worker) < RENEW_BELOW_SECONDS",
        story="a_load_that_lasts_longer_than_a_lease",
    ),
    Mutant(
        8,
        "a canary is set apart without a drain",
        "core/calls.py",
        "drain_timeout_seconds=settings.pause.drain_timeout_seconds,\n    )\n\n\ndef probe(",
        "drain_timeout_seconds=0,\n    )\n\n\ndef probe(",
        CANARY,
    ),
    Mutant(
        11,
        "a worker takes calls that are for another pod",
        "core/addressing.py",
        "if wanted != own:",
        "if False:",
        package="fleet_worker",
        first_seed=189,
    ),
    Mutant(
        9,
        "what a version stands for is not written down",
        "core/pins.py",
        "if observed.is_external:",
        "if observed.workers:",
        story="files_that_are_rewritten_under_their_path",
    ),
    Mutant(
        9,
        "workers load before it is written down what the version stands for",
        "core/pins.py",
        "kept += [action] if stored else []",
        "kept += [action]",
        story="files_that_are_rewritten_before_anything_is_written_down",
    ),
    Mutant(
        9,
        "other files under the same version of a run count as applied",
        "core/reuse.py",
        "elif not _is_from(wanted.source, source, commit):",
        "elif False:",
        SYNCHRONIZED,
    ),
    Mutant(
        12,
        "a worker that is scaled away is given no time",
        "core/draining.py",
        "drain_timeout_seconds=timeout_seconds,",
        "drain_timeout_seconds=0,",
    ),
    Mutant(
        12,
        "a pod is not told how long its requests may take",
        "core/pods.py",
        '"value": str(seconds)}',
        '"value": "0"}',
    ),
    Mutant(
        11,
        "an operator believes whoever has the address",
        "core/answers.py",
        "if not other and reason != Reason.WRONG_POD:",
        "if True:",
    ),
]


@pytest.mark.no_cover
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.mistake}")
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


def test_another_promise_is_no_catch(tmp_path):
    mutant = next(m for m in MUTANTS if m.promise == 7)
    mutated = a_copy_with(mutant, tmp_path)

    assert breaks(mutated, mutant.rollout, histories=3)
    assert not breaks(mutated, mutant.rollout, promise=1, histories=3)


def test_every_promise_has_its_mistakes():
    counts = Counter(m.promise for m in MUTANTS)

    assert set(counts) == {*range(1, 10), 11, 12}
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
