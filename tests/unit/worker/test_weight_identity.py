"""Weights are one run's, one version and one set of bytes: a worker never takes one for another."""

from __future__ import annotations

import asyncio
import mmap
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import damage
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import Bench, a_bench, refused

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.states import Event
from fleet_worker.protocol import (
    HuggingFaceSource,
    Phase,
    Reason,
    Source,
    StageRequest,
)

OTHER = "sha256:" + "0" * 64


async def swap(bench: Bench, version: str, path: Path, run_id: str) -> None:
    await bench.stage(version, path, run_id=run_id)
    await bench.pause()
    await bench.load(version, run_id=run_id)
    await bench.resume(version, run_id=run_id)


async def test_another_runs_version_of_the_same_number_is_loaded(serving: Bench) -> None:
    """Also while the one before serves: a run that is begun again counts from 0."""
    digests, labels = [], []
    for run_id, value in (("run-7", 1.0), ("run-8", 2.0)):
        path = write_tiny(serving.root / run_id / "step_40", value)
        await swap(serving, "40", path, run_id)
        state = serving.state
        assert (state.version, state.run_id, state.phase) == ("40", run_id, Phase.SERVING)
        assert serving.engine.weights == str(path)
        digests.append(state.digest)
        labels.append(serving.engine.raw_label)

    assert len(set(digests)) == len(set(labels)) == 2


async def test_two_runs_that_publish_the_same_bytes_are_still_two(serving: Bench) -> None:
    path = write_tiny(serving.root / "first", 1.0)
    labels = []
    for run_id in ("run-7", "run-8"):
        await swap(serving, "0", path, run_id)
        assert serving.state.run_id == run_id
        labels.append(serving.engine.raw_label)

    assert labels[0] != labels[1]


async def test_other_bytes_under_a_version_of_the_same_run_are_refused_and_nothing_changes(
    serving: Bench,
) -> None:
    path = write_tiny(serving.root / "current", 1.0)
    await swap(serving, "43", path, "run-7")
    before = serving.state.digest
    write_tiny(path, 2.0)
    for again in (path, write_tiny(serving.root / "elsewhere", 3.0)):
        refusal = await refused(serving.stage("43", again, run_id="run-7"))
        assert refusal.reason is Reason.VERSION_REUSED
        assert "run-7" in refusal.message

    assert (serving.state.version, serving.state.digest) == ("43", before)
    failure = serving.state.stage_failure
    assert failure is not None
    assert (failure.reason, failure.run_id) == (Reason.VERSION_REUSED, "run-7")


async def test_the_same_bytes_are_the_same_version_wherever_they_are_copied_to(
    serving: Bench,
) -> None:
    await swap(serving, "43", write_tiny(serving.root / "a", 1.0), "run-7")
    first = serving.state.digest
    await swap(serving, "43", write_tiny(serving.root / "b", 1.0), "run-7")

    assert serving.state.digest == first


async def test_a_path_that_was_rewritten_is_read_again_before_it_is_called_the_same(
    serving: Bench,
) -> None:
    """Also if nothing is to be refused: the same bytes, written anew."""
    path = write_tiny(serving.root / "current", 1.0)
    await swap(serving, "43", path, "run-7")
    await serving.stage("43", path, run_id="run-7")
    assert serving.state.staged is None, "the files are as they were"
    write_tiny(path, 1.0)
    await serving.stage("43", path, run_id="run-7")

    staged = serving.state.staged
    assert staged is not None
    assert (staged.digest, staged.run_id) == (serving.state.digest, "run-7")


async def test_a_rewrite_that_the_file_system_does_not_tell_makes_no_two_workers_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping that is written to, or a cache of a network file system: size, inode and times stay
    as they were. The second worker is asked for the digest that the first one has reported.
    """
    path = write_tiny(tmp_path / "weights" / "current", 1.0)
    file = path / damage.WEIGHTS
    known = {"config.json": FileState(1, 1, 1, 1), damage.WEIGHTS: FileState(1, 1, 1, 1)}
    async with a_bench(tmp_path / "one") as one, a_bench(tmp_path / "two") as two:
        for bench in (one, two):
            bench.agent.staging.rules = replace(bench.agent.staging.rules, roots=Roots([tmp_path]))
        monkeypatch.setattr(OpenDirectory, "state_of", lambda _, name: known.get(name))
        monkeypatch.setattr(OpenDirectory, "opened_state_of", lambda _, name: known.get(name))
        monkeypatch.setattr(OpenFile, "check_unchanged", lambda _: None)
        monkeypatch.setattr(Checkpoint, "check_same_on_disk", lambda *_: None)
        await one.stage("43", path, run_id="run-7")
        assert one.state.staged is not None
        digest = one.state.staged.digest
        assert digest is not None
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as written:
            written[-1] ^= 0x40
        refusal = await refused(two.stage("43", path, run_id="run-7", digest=digest))
        await two.stage("43", path, run_id="run-7")

        assert refusal.reason is Reason.DIGEST_MISMATCH
        assert two.state.staged is not None
        assert two.state.staged.digest not in (None, digest)


@pytest.mark.parametrize("named", [{"run_id": "run-8"}, {"digest": OTHER}], ids=str)
async def test_what_is_staged_is_not_loaded_for_another_run_or_other_bytes(
    serving: Bench, named: dict[str, str]
) -> None:
    await serving.stage("40", run_id="run-7")
    staged = serving.state.staged
    assert staged is not None
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


@pytest.mark.parametrize("named", [{"run_id": "run-8"}, {"digest": OTHER}], ids=str)
@pytest.mark.parametrize("event", [Event.RESUME, Event.ADMIT], ids=str)
async def test_what_is_in_the_engine_is_not_opened_for_another_run_or_other_bytes(
    serving: Bench, named: dict[str, str], event: Event
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


async def test_a_load_of_what_is_in_the_engine_means_its_run_and_its_bytes(serving: Bench) -> None:
    await swap(serving, "40", write_tiny(serving.root / "a", 1.0), "run-7")
    digest = serving.state.digest
    await serving.stage("40", write_tiny(serving.root / "b", 2.0), run_id="run-8")
    await serving.pause()
    loads = serving.engine.calls.count("set_version 40")
    await serving.load("40", run_id="run-7", digest=digest or "")
    assert serving.engine.calls.count("set_version 40") == loads, "it is there already"
    await serving.load("40", run_id="run-8")

    assert (serving.state.run_id, serving.state.digest != digest) == ("run-8", True)


async def test_what_is_under_way_and_what_failed_name_their_run(serving: Bench) -> None:
    await serving.stage("40", run_id="run-7")
    await serving.pause()
    seen = []
    probe = serving.engine.probe

    async def watched() -> None:
        seen.append(serving.state.operation)
        await probe()

    serving.engine.probe = watched  # type: ignore[method-assign]
    await serving.load("40")

    (operation,) = seen
    assert operation is not None
    assert (operation.kind, operation.version, operation.run_id) == ("load", "40", "run-7")


async def test_what_prompts_said_of_one_run_is_not_said_of_the_next(serving: Bench) -> None:
    await swap(serving, "40", write_tiny(serving.root / "a", 1.0), "run-7")
    assert await serving.probe() is not None
    await swap(serving, "40", write_tiny(serving.root / "b", 2.0), "run-8")

    assert serving.state.probe is None


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


async def test_a_branch_is_reported_as_its_commit_and_is_not_the_same_once_it_moved(
    serving: Bench, hub: Path
) -> None:
    async def stage(revision: str) -> None:
        request = StageRequest(
            version="7", run_id="run-7", source=from_hub(revision), epoch=serving.epoch()
        )
        await serving.agent.stage(request)

    await stage("main")
    staged = serving.state.staged
    assert staged is not None
    assert staged.source == from_hub("1" * 40)
    await stage("1" * 40)
    assert serving.state.staged == staged, "the branch and its commit are the same"
    await serving.pause()
    await serving.load("7")
    await serving.resume("7")
    assert serving.state.source == from_hub("1" * 40)

    await asyncio.to_thread(hub.write_text, "2" * 40)
    with pytest.raises(Refusal) as reused:
        await stage("main")
    assert reused.value.reason is Reason.VERSION_REUSED
    assert serving.state.source == from_hub("1" * 40)
