"""Every bad checkpoint is refused for its own reason, and the weights in the engine are untouched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.bad_checkpoints import CASES, Place
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.environments import engine_environment, worker_python
from tests.support.programs import written_by
from tests.support.selection import others_long
from tests.support.worker import WorkerProcess

# Reading files needs no engine (tests/unit/worker). A few cases show that a real worker keeps serving.
EVERY_TIME = {
    "missing directory",
    "outside of the roots",
    "cut in the data",
    "wrong width",
    "one NaN",
}


@pytest.mark.parametrize(
    ("build", "reason", "words"),
    others_long(EVERY_TIME, CASES),
)
def test_a_bad_checkpoint_is_refused_with_its_reason_and_the_old_weights_serve_on(
    worker: WorkerProcess,
    weights: Weights,
    home: str,
    new_version: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
    build: Callable[[Place], Path],
    reason: str,
    words: str,
) -> None:
    number = new_version()
    inside = weights.root / f"case-{number}"
    inside.mkdir()
    place = Place(weights, inside, tmp_path_factory.mktemp("outside"))
    before = worker.greedy()
    refusals = worker.metric("rlfleet_worker_refusals_total", reason=reason)

    source = {"path": str(build(place))}
    version = new_version()
    status, found, message = worker.refusal("stage", version=version, source=source)

    assert (status, found) == (422, reason)
    assert words in message
    state = worker.state()
    assert (state["phase"], state["version"], state["staged"]) == ("serving", home, None)
    assert state["stage_failure"]["reason"] == reason
    assert state["stage_failure"]["version"] == version
    assert worker.metric("rlfleet_worker_refusals_total", reason=reason) == refusals + 1
    assert worker.greedy() == before
    # And the worker takes the next good one as if nothing had been.
    after = worker.swap(good := new_version(), weights.b)
    assert (after["phase"], after["version"], after["load_failure"]) == ("serving", good, None)


def _rewrite(checkpoint: Path, weights: Weights) -> None:
    (checkpoint / damage.WEIGHTS).write_bytes((weights.c / damage.WEIGHTS).read_bytes())


def _replace(checkpoint: Path, weights: Weights) -> None:
    shutil.rmtree(checkpoint)
    copy_of(weights.c, checkpoint)


def _truncate(checkpoint: Path, weights: Weights) -> None:
    os.truncate(checkpoint / damage.WEIGHTS, 1000)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_rewrite, id="written over in place"),
        pytest.param(_replace, id="replaced by another directory"),
        pytest.param(_truncate, id="cut short"),
    ],
)
def test_files_changed_after_staging_do_not_change_what_is_held(
    worker: WorkerProcess,
    weights: Weights,
    home: str,
    new_version: Callable[[], str],
    change: Callable[[Path, Weights], None],
) -> None:
    worker.swap(new_version(), weights.b)
    expected = worker.greedy()
    worker.swap(new_version(), weights.a)
    checkpoint = copy_of(weights.b, weights.root / f"changing-{new_version()}")
    staged = worker.stage(version := new_version(), checkpoint)["staged"]
    assert staged["in_memory"]
    worker.must("pause", mode="keep", lease_seconds=60)
    change(checkpoint, weights)
    worker.must("load", version=version)
    state = worker.must("resume", version=version)

    assert (state["version"], state["digest"]) == (version, staged["digest"])
    assert state["load_failure"] is None
    assert worker.greedy() == expected


def test_a_version_that_is_still_being_written_is_not_ready_and_taken_once_it_is_whole(
    worker: WorkerProcess, weights: Weights, home: str, new_version: Callable[[], str]
) -> None:
    layout = weights.root / f"broadcasts-{new_version()}"
    copy_of(weights.b, layout / "step_1")
    (layout / "step_1" / "STABLE").touch()
    writing = copy_of(weights.c, layout / "step_2")
    source, version = {"path": str(writing)}, new_version()
    status, reason, message = worker.refusal("stage", version=version, source=source)

    assert (status, reason) == (409, "SourceNotReady")
    assert "STABLE" in message
    assert worker.state()["stage_failure"]["reason"] == "SourceNotReady"
    (writing / "STABLE").touch()
    assert worker.swap(version, writing)["version"] == version


def test_a_wrong_digest_is_refused_and_what_manifest_prints_is_taken(
    worker: WorkerProcess, weights: Weights, home: str, new_version: Callable[[], str]
) -> None:
    before = worker.greedy()
    command = [worker_python(), "-m", "fleet_worker", "manifest", "--digest", str(weights.b)]
    digest = written_by(command, env=engine_environment(), timeout=60).strip()
    source = {"path": str(weights.b)}
    wrong = "sha256:" + "0" * 64
    status, reason, message = worker.refusal(
        "stage", version=new_version(), source=source, digest=wrong
    )

    assert (status, reason) == (422, "DigestMismatch")
    assert digest in message
    assert worker.greedy() == before
    worker.stage(new_version(), weights.b, digest=digest)


def test_a_version_whose_files_are_deleted_after_staging_is_loaded_from_the_held_bytes(
    worker: WorkerProcess, weights: Weights, home: str, new_version: Callable[[], str]
) -> None:
    worker.swap(new_version(), weights.b)
    expected = worker.greedy()
    worker.swap(new_version(), weights.a)
    checkpoint = copy_of(weights.b, weights.root / f"vanishing-{new_version()}")
    worker.stage(version := new_version(), checkpoint)
    shutil.rmtree(checkpoint)
    worker.must("pause", mode="keep", lease_seconds=60)
    worker.must("load", version=version)
    worker.must("resume", version=version)

    assert worker.greedy() == expected


def test_a_load_that_fails_inside_the_engine_closes_the_worker_and_puts_the_last_good_back(
    worker: WorkerProcess, weights: Weights, home: str, new_version: Callable[[], str]
) -> None:
    before = worker.greedy()
    overflowing = copy_of(weights.b, weights.root / f"overflowing-{new_version()}")
    damage.make_overflow(overflowing)
    worker.stage(version := new_version(), overflowing)
    worker.must("pause", mode="keep", lease_seconds=60)
    status, reason, _ = worker.refusal("load", version=version)

    assert (status, reason) == (500, "ProbeFailed")
    state = worker.state()
    assert (state["phase"], state["admitted"], state["version"]) == ("joining", False, home)
    assert state["load_failure"]["version"] == version
    assert not worker.is_ready()
    assert worker.refusal("resume", version=home)[:2] == (409, "WrongPhase")
    worker.must("admit", version=home)
    assert worker.greedy() == before
