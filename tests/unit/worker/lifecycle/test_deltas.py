"""A worker whose versions are deltas: what it stages them from, and what it keeps for the way back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.descriptors import left_open, open_descriptors
from tests.support.present import present
from tests.support.slime_deltas import write_delta
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing, refused

from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.protocol import Phase, Reason


class Run:
    """Versions of a run below a worker's root, each in full and as a delta."""

    def __init__(self, root: Path, **form: Any) -> None:
        self.root = root
        self.form = form
        self.full(0, 0.0)

    def full(self, version: int, value: float | None = None) -> Path:
        folder = self.root / "full" / f"weight_v{version:06d}"
        return folder if value is None else write_tiny(folder, value)

    def add(self, version: int, **more: Any) -> Path:
        self.full(version, 1.0 + version)
        return write_delta(
            self.full(version - 1),
            self.full(version),
            self.root / f"weight_v{version:06d}",
            version=f"{version:06d}",
            base_version=f"{version - 1:06d}",
            **self.form,
            **more,
        )

    def digest(self, version: int) -> str:
        checkpoint = open_checkpoint(str(self.full(version)), None)
        try:
            return checkpoint.digest(lambda: None)
        finally:
            checkpoint.close()


def with_budget(worker: WorkerHarness, budget: int) -> None:
    staging = worker.agent.staging
    staging.rules = replace(staging.rules, budget_bytes=budget)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
async def test_deltas_follow_one_another_from_what_the_worker_holds(
    serving: WorkerHarness, tmp_path: Path, encoding: str
) -> None:
    run = Run(tmp_path, encoding=encoding)
    for version in (1, 2, 3):
        path = run.add(version)
        await serving.swap(str(version), path)
        assert serving.state.digest == run.digest(version)
        shutil.rmtree(path)


async def test_deltas_without_digests_follow_a_full_version_that_the_worker_holds(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    await serving.swap("1", shutil.copytree(run.full(1, 2.0), tmp_path / "weight_v000001"))
    for version in (2, 3):
        path = run.add(version)
        await serving.stage(str(version), path)
        staged = present(serving.state.staged)
        assert staged.digest == run.digest(version)
        assert staged.read_bytes == sum(f.stat().st_size for f in path.glob("*.safetensors"))
        await serving.swap(str(version), path)
        assert present(serving.state.timings).published_bytes == staged.read_bytes
        assert present(serving.state.timings).size_bytes == staged.size_bytes


async def test_a_staged_version_is_the_base_of_the_next_before_it_is_loaded(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    await serving.stage("1", run.add(1))
    shutil.rmtree(run.root / "weight_v000001")
    second = run.add(2)
    await serving.stage("2", second)

    staged = present(serving.state.staged)
    assert (staged.version, staged.digest, staged.in_memory) == ("2", run.digest(2), True)


async def test_a_rollback_is_built_from_the_chain(serving: WorkerHarness, tmp_path: Path) -> None:
    run = Run(tmp_path)
    first = run.add(1)
    await serving.swap("1", first)
    await serving.swap("2", run.add(2))
    await serving.swap("3", run.add(3))
    await serving.swap("1", first)

    assert serving.state.digest == run.digest(1)


async def test_a_failed_load_goes_back_to_the_result_of_a_delta(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    await serving.swap("1", run.add(1))
    shutil.rmtree(run.root / "weight_v000001")
    run.add(2)
    await serving.stage("2", run.root / "weight_v000002")
    await serving.pause()
    serving.engine.failures["load"] = [EngineFailure("injected", touched=True)]
    await failing(serving.load("2"))

    assert serving.state.phase is Phase.JOINING
    assert serving.state.digest == run.digest(1)
    assert not serving.ended


async def test_a_result_that_does_not_fit_next_to_the_weights_in_the_engine_is_refused(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    first = run.add(1)
    size = sum(file.stat().st_size for file in run.full(1).glob("*.safetensors"))
    with_budget(serving, 2 * size - 1)
    await serving.swap("1", first)  # the base is in files, and takes no memory
    refusal = await refused(serving.stage("2", run.add(2)))
    assert refusal.reason is Reason.NOT_AVAILABLE
    assert serving.state.digest == run.digest(1)
    assert serving.state.stage_failure is not None

    # A full version needs no memory.
    await serving.swap("2", run.full(2))
    assert serving.state.digest == run.digest(2)
    assert serving.agent.good.in_memory is False


async def test_a_base_in_memory_is_read_from_its_files_if_the_result_needs_the_room(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    full = shutil.copytree(run.full(1, 2.0), tmp_path / "weight_v000001")
    size = sum(file.stat().st_size for file in full.glob("*.safetensors"))
    with_budget(serving, 2 * size - 1)
    await serving.swap("1", full)
    assert serving.agent.good.in_memory
    await serving.stage("2", run.add(2))

    staged = present(serving.state.staged)
    assert staged.digest == run.digest(2)
    assert staged.read_bytes is not None
    assert staged.read_bytes > size


async def test_a_state_says_how_much_was_read(serving: WorkerHarness, tmp_path: Path) -> None:
    run = Run(tmp_path)
    await serving.stage("1", run.full(1, 1.5))
    staged = present(serving.state.staged)
    assert staged.read_bytes == staged.size_bytes
    await serving.swap("1", run.full(1))
    run.full(2, 3.0)
    second = run.add(2, base_digest=run.digest(1), result_digest=run.digest(2))
    await serving.stage("2", second)

    staged = present(serving.state.staged)
    assert staged.read_bytes == sum(f.stat().st_size for f in second.glob("*.safetensors"))
    read = serving.registry.get_sample_value("rlfleet_worker_stage_read_bytes_total")
    assert read == staged.size_bytes + staged.read_bytes


async def test_a_result_with_another_digest_than_the_delta_names_is_refused(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    before = open_descriptors()
    path = run.add(1, result_digest=run.digest(0))
    refusal = await refused(serving.stage("1", path))

    assert refusal.reason is Reason.DELTA_MISMATCH
    assert serving.state.staged is None
    await soon(lambda: not left_open(before))


async def test_a_store_that_hangs_keeps_no_memory_of_a_base(
    serving: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    await serving.swap("1", run.add(1))
    second = run.add(2)
    before = open_descriptors()

    async def hang(work: Any, **_: Any) -> Any:
        raise Refusal(Reason.SOURCE_UNREADABLE, "the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(serving.agent.staging.threads, "run", hang)
        patched.setattr(serving.agent.staging, "_prepare", serving.agent.staging._read)
        await refused(serving.stage("2", second))
    assert not left_open(before)


async def test_a_delta_without_its_base_is_refused_and_staged_once_it_is_there(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.add(1)
    second = run.add(2)
    hidden = (tmp_path / "weight_v000001").rename(tmp_path / "hidden")
    (hidden / "model.safetensors.index.json").rename(tmp_path / "index.json")
    refusal = await refused(serving.stage("2", second))
    assert refusal.reason is Reason.BASE_MISSING
    assert present(serving.state.stage_failure).reason is Reason.BASE_MISSING

    (tmp_path / "index.json").rename(hidden / "model.safetensors.index.json")
    hidden.rename(tmp_path / "weight_v000001")
    await serving.stage("2", second)
    assert serving.state.stage_failure is None


async def test_a_delta_that_its_base_made_bad_is_read_again_once_the_base_is_repaired(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    base = shutil.copytree(run.full(1, 2.0), tmp_path / "weight_v000001")
    second = run.add(2)
    right = (base / "config.json").read_text()
    config = json.loads(right)
    config |= {key: value + 1 for key, value in config.items() if type(value) is int}
    (base / "config.json").write_text(json.dumps(config))
    refusal = await refused(serving.stage("2", second))
    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    (base / "config.json").write_text(right)

    # All bytes of version 2 are in this delta's result but those of the base's configuration.
    (base / "config.json").write_text(f"{right} ")
    refusal = await refused(serving.stage("2", second, digest=run.digest(2)))
    assert refusal.reason is Reason.DIGEST_MISMATCH
    (base / "config.json").write_text(right)
    await serving.stage("2", second, digest=run.digest(2))


async def test_a_delta_for_peers_counts_as_memory_until_the_next_version(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    await serving.swap("1", write_tiny(tmp_path / "1"))
    agent, ended = serving.agent, []
    assert isinstance(agent.good, Weights)
    left, checkpoint = agent.memory_left(), agent.good.checkpoint
    checkpoint.delta_bytes, checkpoint.withdraw_delta = 40, partial(ended.append, "delta")
    assert agent.memory_left() == left - 40
    await serving.stage("2", write_tiny(tmp_path / "2", 2.0))

    assert (checkpoint.delta_bytes, ended) == (0, ["delta"])
