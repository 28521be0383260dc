"""Weights are a run, a version and a digest; the worker never confuses two of them."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import damage
from tests.support.present import present
from tests.support.tiny import write_tiny
from tests.support.worker_harness import (
    HOLDER,
    TrainerHarness,
    WorkerHarness,
    refused,
    start_worker,
)

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.lifecycle.states import Event
from fleet_worker.protocol import HuggingFaceSource, Phase, Reason, Source, StageRequest

OTHER_HOLDER = "sha256:" + "0" * 64


async def test_the_same_number_of_another_run_is_loaded(serving: WorkerHarness) -> None:
    """Also while the one before serves: a run that is begun again counts from 0."""
    digests, labels = [], []
    for run_id, value in (("run-7", 1.0), ("run-8", 2.0)):
        path = write_tiny(serving.root / run_id / "step_40", value)
        await serving.swap("40", path, run_id=run_id)
        state = serving.state
        assert (state.version, state.run_id, state.phase) == ("40", run_id, Phase.SERVING)
        assert serving.engine.weights == str(path)
        digests.append(state.digest)
        labels.append(serving.engine.raw_label)

    assert len(set(digests)) == len(set(labels)) == 2


async def test_the_same_bytes_of_two_runs_are_two_versions(serving: WorkerHarness) -> None:
    path = write_tiny(serving.root / "first", 1.0)
    labels = []
    for run_id in ("run-7", "run-8"):
        await serving.swap("0", path, run_id=run_id)
        assert serving.state.run_id == run_id
        labels.append(serving.engine.raw_label)

    assert labels[0] != labels[1]


async def test_other_bytes_under_a_version_of_the_same_run_are_refused_without_an_effect(
    serving: WorkerHarness,
) -> None:
    path = write_tiny(serving.root / "current", 1.0)
    await serving.swap("43", path, run_id="run-7")
    before = serving.state.digest
    write_tiny(path, 2.0)
    for again in (path, write_tiny(serving.root / "elsewhere", 3.0)):
        refusal = await refused(serving.stage("43", again, run_id="run-7"))
        assert refusal.reason is Reason.VERSION_REUSED
        assert "run-7" in refusal.message

    assert (serving.state.version, serving.state.digest) == ("43", before)
    failure = present(serving.state.stage_failure)
    assert (failure.reason, failure.run_id) == (Reason.VERSION_REUSED, "run-7")


async def test_the_same_bytes_at_another_path_are_the_same_version(serving: WorkerHarness) -> None:
    await serving.swap("43", write_tiny(serving.root / "a", 1.0), run_id="run-7")
    first = serving.state.digest
    await serving.swap("43", write_tiny(serving.root / "b", 1.0), run_id="run-7")

    assert serving.state.digest == first


async def test_a_rewritten_path_is_read_again_before_it_counts_as_the_same(
    serving: WorkerHarness,
) -> None:
    """Also when no check refuses anything: the same bytes, written again."""
    path = write_tiny(serving.root / "current", 1.0)
    await serving.swap("43", path, run_id="run-7")
    await serving.stage("43", path, run_id="run-7")
    assert serving.state.staged is None, "the files are as they were"
    write_tiny(path, 1.0)
    await serving.stage("43", path, run_id="run-7")

    staged = present(serving.state.staged)
    assert (staged.digest, staged.run_id) == (serving.state.digest, "run-7")


async def test_a_staged_version_whose_files_were_rewritten_is_read_again(
    serving: WorkerHarness,
) -> None:
    """A peer that stages it now reads the new files under the same version."""
    path = write_tiny(serving.root / "current", 1.0)
    await serving.stage("43", path)
    first = serving.state.staged
    await serving.stage("43", path)
    assert serving.state.staged == first, "the files are as they were"
    write_tiny(path, 2.0)
    await serving.stage("43", path)
    second = serving.state.staged

    assert first is not None
    assert second is not None
    assert first.digest != second.digest


@pytest.mark.parametrize("loaded", [False, True], ids=["staged", "in the engine"])
async def test_a_link_that_leads_to_other_files_is_another_source(
    serving: WorkerHarness, loaded: bool
) -> None:
    link = serving.root / "current"
    link.symlink_to(write_tiny(serving.root / "one", 1.0))
    await serving.stage("43", link)
    if loaded:
        await serving.apply("43")
    link.unlink()
    await serving.stage("43", link)  # as after the end of a directory: the bytes are here
    link.symlink_to(write_tiny(serving.root / "two", 2.0))

    if loaded:
        assert (await refused(serving.stage("43", link))).reason is Reason.VERSION_REUSED
        return
    staged = serving.state.staged
    await serving.stage("43", link)
    assert staged is not None
    assert present(serving.state.staged).digest != staged.digest


async def test_a_staged_version_is_not_loaded_once_its_label_names_other_weights(
    serving: WorkerHarness,
) -> None:
    files = TrainerHarness.of(serving).files
    await serving.stage("42")
    await serving.pause(holder=HOLDER)
    await serving.load("42", holder=HOLDER)
    loaded = serving.state.digest
    path = await serving.stage("43", write_tiny(serving.root / "others", 9.0))
    await files.name_version(HOLDER, "43")
    assert (await refused(serving.stage("43", path))).reason is Reason.VERSION_REUSED
    staged = present(serving.state.staged)
    other = {"digest": staged.digest, "holder": HOLDER}
    assert (await refused(serving.load("43", **other))).reason is Reason.VERSION_REUSED
    await serving.resume("43", holder=HOLDER)
    refusal = await refused(serving.apply("43", digest=staged.digest))
    assert refusal.reason is Reason.VERSION_REUSED
    assert serving.state.digest == loaded


async def test_an_unnoticed_rewrite_does_not_make_two_workers_report_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping that is written to, or a cache of a network file system: size, inode and times stay
    as they were. The second worker compares with the digest that the first one has reported.
    """
    path = write_tiny(tmp_path / "weights" / "current", 1.0)
    file = path / damage.WEIGHTS
    known = {"config.json": FileState(1, 1, 1, 1), damage.WEIGHTS: FileState(1, 1, 1, 1)}
    async with start_worker(tmp_path / "one") as one, start_worker(tmp_path / "two") as two:
        for harness in (one, two):
            harness.agent.staging.rules = replace(
                harness.agent.staging.rules, roots=Roots([tmp_path])
            )
        monkeypatch.setattr(OpenDirectory, "state_of", lambda _, name: known.get(name))
        monkeypatch.setattr(OpenDirectory, "opened_state_of", lambda _, name: known.get(name))
        monkeypatch.setattr(OpenFile, "check_unchanged", lambda _: None)
        monkeypatch.setattr(Checkpoint, "check_same_on_disk", lambda *_: None)
        await one.stage("43", path, run_id="run-7")
        digest = present(one.state.staged).digest
        assert digest is not None
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as written:
            written[-1] ^= 0x40
        refusal = await refused(two.stage("43", path, run_id="run-7", digest=digest))
        await two.stage("43", path, run_id="run-7")

        assert refusal.reason is Reason.DIGEST_MISMATCH
        assert present(two.state.staged).digest not in (None, digest)


@pytest.mark.parametrize("named", [{"run_id": "run-8"}, {"digest": OTHER_HOLDER}], ids=str)
async def test_a_staged_version_is_not_loaded_for_another_run_or_digest(
    serving: WorkerHarness, named: dict[str, str]
) -> None:
    await serving.stage("40", run_id="run-7")
    staged = present(serving.state.staged)
    await serving.pause()
    for call in (serving.load("40", **named), serving.apply("40", **named)):
        refusal = await refused(call)
        assert refusal.reason is Reason.NOT_STAGED
        for both in (*named.values(), "run-7", staged.digest or ""):
            assert both in refusal.message

    assert serving.state.version == "base"
    assert serving.state.staged == staged
    assert staged.digest is not None
    await serving.load("40", run_id="run-7", digest=staged.digest)
    assert serving.state.version == "40"


@pytest.mark.parametrize("named", [{"run_id": "run-8"}, {"digest": OTHER_HOLDER}], ids=str)
@pytest.mark.parametrize("event", [Event.RESUME, Event.ADMIT], ids=str)
async def test_a_loaded_version_is_not_opened_for_another_run_or_digest(
    serving: WorkerHarness, named: dict[str, str], event: Event
) -> None:
    await serving.stage("40", run_id="run-7")
    await serving.pause()
    await serving.load("40")
    if event is Event.ADMIT:
        await serving.fence()
    opening = serving.admit if event is Event.ADMIT else serving.resume
    refusal = await refused(opening("40", **named))

    assert refusal.reason is Reason.VERSION_MISMATCH
    for both in (*named.values(), "run-7", serving.state.digest or ""):
        assert both in refusal.message
    await opening("40", run_id="run-7", digest=serving.state.digest or "")
    assert serving.state.phase is Phase.SERVING


async def test_loading_the_loaded_version_checks_its_run_and_digest(serving: WorkerHarness) -> None:
    await serving.swap("40", write_tiny(serving.root / "a", 1.0), run_id="run-7")
    digest = serving.state.digest
    await serving.stage("40", write_tiny(serving.root / "b", 2.0), run_id="run-8")
    await serving.pause()
    loads = serving.engine.calls.count("set_version 40")
    await serving.load("40", run_id="run-7", digest=digest or "")
    assert serving.engine.calls.count("set_version 40") == loads, "it is there already"
    await serving.load("40", run_id="run-8")

    assert (serving.state.run_id, serving.state.digest != digest) == ("run-8", True)


async def test_a_canary_report_names_its_run_after_a_load_of_the_next(
    serving: WorkerHarness,
) -> None:
    await serving.swap("40", write_tiny(serving.root / "a", 1.0), run_id="run-7")
    assert await serving.run_prompts() is not None
    await serving.swap("40", write_tiny(serving.root / "b", 2.0), run_id="run-8")

    reported = present(serving.state.probe)
    assert (reported.version, reported.run_id) == ("40", "run-7")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cached repository whose branch `main` can be moved."""
    repository = tmp_path / "hub" / "models--org--name"
    for number in (1, 2):
        write_tiny(repository / "snapshots" / (str(number) * 40), float(number))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1" * 40)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return repository / "refs" / "main"


def from_hub(revision: str) -> Source:
    return Source(hugging_face=HuggingFaceSource(repo="org/name", revision=revision))


async def test_a_branch_is_reported_as_its_commit_and_differs_once_it_moved(
    serving: WorkerHarness, hub: Path
) -> None:
    async def stage(revision: str) -> None:
        request = StageRequest(
            version="7", run_id="run-7", source=from_hub(revision), epoch=serving.epoch()
        )
        await serving.agent.stage(request)

    await stage("main")
    staged = present(serving.state.staged)
    assert staged.source == from_hub("1" * 40)
    await stage("1" * 40)
    assert serving.state.staged == staged, "the branch and its commit are the same"
    await serving.pause()
    await serving.load("7")
    await serving.resume("7")
    assert serving.state.source == from_hub("1" * 40)

    await asyncio.to_thread(hub.write_text, "2" * 40)
    assert (await refused(stage("main"))).reason is Reason.VERSION_REUSED
    assert serving.state.source == from_hub("1" * 40)
