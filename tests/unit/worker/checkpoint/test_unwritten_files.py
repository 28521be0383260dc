"""Checkpoints with the right length whose bytes are not all written yet."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import damage
from tests.support.clock import FakeClock
from tests.support.tiny import TinyInspector, write_tiny
from tests.support.worker_harness import WorkerHarness, refused, stage_request

from fleet_worker.checkpoint.blocks import BLOCK_ELEMENTS, blocks_between
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import DTYPES

COUNT = 4 * BLOCK_ELEMENTS
"""Elements of each of three tensors, and their bytes."""


def write(directory: Path, *parts: bytes) -> Path:
    """Write a checkpoint of three tensors with these bytes."""
    write_tiny(directory)
    file = directory / damage.WEIGHTS
    damage.write_tensors(
        file, {name: ("U8", [COUNT], part) for name, part in zip("abc", parts, strict=True)}
    )
    return directory


def leave_a_hole(path: Path, begin: int, length: int) -> None:
    """Rewrite a file, as a writer that sets its length first and stops before it is done."""
    file = path / damage.WEIGHTS
    content = file.read_bytes()
    with file.open("wb") as out:
        out.truncate(len(content))
        out.write(content[:begin])
        out.seek(begin + length)
        out.write(content[begin + length :])


def age(path: Path) -> None:
    """Set the files' times back, as if nothing was written for an hour."""
    past = time.time() - 3600
    for file in path.iterdir():
        os.utime(file, (past, past))


ONES = b"\x01" * COUNT


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """A worker whose model has no zeros."""
    return make_staging(tmp_path, write(tmp_path / "base", ONES, ONES, ONES))


def make_staging(root: Path, model: Path) -> Staging:
    inspector = TinyInspector()
    checkpoint = open_checkpoint(str(model), None)
    inspector.read(checkpoint, budget=0, check_cancelled=lambda: None)
    reference = Reference.of(checkpoint, inspector)
    checkpoint.close()
    rules = StageRules(
        Roots([root]),
        replace(reference, zero_blocks=checkpoint.zero_blocks),
        inspector,
        budget_bytes=1 << 30,
    )

    async def make_room(_size: int) -> int:
        return rules.budget_bytes

    return Staging(rules, Labels(), FakeClock(), make_room)


async def refusal_of(staging: Staging, path: Path, digest: str | None = None) -> Refusal:
    return await refused(staging.stage(stage_request(path.name, path, digest)))


@pytest.mark.parametrize(
    ("begin", "length"),
    [(COUNT, 2 * COUNT + 4096), (COUNT, 8192)],
    ids=["the tail", "in the middle"],
)
async def test_a_file_with_holes_is_refused(
    staging: Staging, tmp_path: Path, begin: int, length: int
) -> None:
    path = write(tmp_path / "50", ONES, ONES, ONES)
    size = (path / damage.WEIGHTS).stat().st_size
    leave_a_hole(path, begin, min(length, size - begin))
    fresh = await refusal_of(staging, path)
    age(path)
    rested = await refusal_of(staging, path)

    assert fresh.reason is Reason.SOURCE_NOT_READY
    assert fresh.retry_after_seconds == 2
    assert rested.reason is Reason.CHECKPOINT_TRUNCATED
    assert "rename" in rested.message
    assert "spec.digest" in rested.message
    assert staging.rules.inspector.checked[1:] == [], "no tensor was read"
    write(path, ONES, ONES, ONES)
    await staging.stage(stage_request("50", path))
    assert staging.staged is not None


@pytest.mark.parametrize("blocks", [1, 4], ids=["one block", "a whole tensor"])
async def test_zero_blocks_where_the_model_has_none_are_refused(
    staging: Staging, tmp_path: Path, blocks: int
) -> None:
    zeros = ONES[blocks * BLOCK_ELEMENTS :] + bytes(blocks * BLOCK_ELEMENTS)
    path = write(tmp_path / "50", ONES, ONES, zeros)
    assert (await refusal_of(staging, path)).reason is Reason.SOURCE_NOT_READY
    age(path)
    refusal = await refusal_of(staging, path)

    assert refusal.reason is Reason.CHECKPOINT_TRUNCATED
    assert f"({blocks} block" in refusal.message
    assert "'c'" in refusal.message


@pytest.mark.parametrize(
    ("ahead_seconds", "reason", "reads"),
    [(5, Reason.SOURCE_NOT_READY, 2), (3600, Reason.CHECKPOINT_TRUNCATED, 1)],
    ids=["a little", "an hour"],
)
async def test_zero_blocks_of_a_writer_whose_clock_is_ahead_are_not_awaited_until_then(
    staging: Staging, tmp_path: Path, ahead_seconds: float, reason: Reason, reads: int
) -> None:
    path = write(tmp_path / "50", ONES, ONES, bytes(COUNT))
    later = time.time() + ahead_seconds
    os.utime(path / damage.WEIGHTS, (later, later))
    refusals = [await refusal_of(staging, path) for _ in range(2)]

    assert [each.reason for each in refusals] == [reason, reason]
    assert staging.rules.inspector.checked.count(str(path)) == reads


async def test_a_matching_digest_allows_zeros_and_holes(staging: Staging, tmp_path: Path) -> None:
    path = write(tmp_path / "50", ONES, ONES, bytes(COUNT))
    leave_a_hole(path, COUNT, 8192)
    opened = open_checkpoint(str(path), None)
    digest = opened.digest(lambda: None)
    opened.close()
    await staging.stage(stage_request("50", path, digest))

    assert staging.staged is not None
    wrong = await refusal_of(staging, path, "sha256:" + "0" * 64)
    assert wrong.reason is Reason.DIGEST_MISMATCH


async def test_zeros_and_holes_where_the_model_has_zeros_are_accepted(tmp_path: Path) -> None:
    staging = make_staging(tmp_path, write(tmp_path / "base", ONES, bytes(COUNT), ONES))
    path = write(tmp_path / "50", ONES, bytes(COUNT), ONES)
    (tensor,) = [each for each in damage.read_tensors(path / damage.WEIGHTS) if each == "b"]
    begin = (path / damage.WEIGHTS).stat().st_size - 2 * COUNT
    leave_a_hole(path, begin + 4096, BLOCK_ELEMENTS)
    await staging.stage(stage_request("50", path))

    assert tensor == "b"
    assert staging.staged is not None


async def test_a_reference_that_was_not_read_allows_any_zeros(
    staging: Staging, tmp_path: Path
) -> None:
    unknown = replace(staging.rules.reference, zero_blocks=None)
    object.__setattr__(staging.rules, "reference", unknown)
    await staging.stage(stage_request("50", write(tmp_path / "50", bytes(COUNT), ONES, ONES)))

    assert staging.staged is not None


@pytest.mark.parametrize(
    ("zeros", "reason"), [(1, None), (2, Reason.SOURCE_NOT_READY)], ids=["as the model", "more"]
)
@pytest.mark.parametrize("sizes", [("F16", "F32"), ("F32", "F16"), ("BF16", "F64")])
async def test_blocks_are_the_same_elements_in_every_type(
    tmp_path: Path, sizes: tuple[str, str], zeros: int, reason: Reason | None
) -> None:
    model, version = (
        write_floats(tmp_path / t, t, zeros=n) for t, n in zip(sizes, (1, zeros), strict=True)
    )
    staging = make_staging(tmp_path, model)
    if reason is not None:
        assert (await refusal_of(staging, version)).reason is reason
        return
    await staging.stage(stage_request("50", version))
    assert staging.staged is not None


def write_floats(directory: Path, dtype: str, *, zeros: int) -> Path:
    """Write a checkpoint of one tensor with some blocks of zeros in the middle."""
    write_tiny(directory)
    size = DTYPES[dtype].bits // 8
    content = b"\x01" * BLOCK_ELEMENTS * size * 4
    begin, end = (number * BLOCK_ELEMENTS * size for number in (1, 1 + zeros))
    content = content[:begin] + bytes(end - begin) + content[end:]
    tensors: damage.Tensors = {"a": (dtype, [4 * BLOCK_ELEMENTS], content)}
    damage.write_tensors(directory / damage.WEIGHTS, tensors)
    return directory


def test_blocks_are_counted_from_the_start_of_each_tensor() -> None:
    specs = [
        TensorSpec("a", "U8", (COUNT,), 100, 100 + COUNT),
        TensorSpec("b", "U8", (10,), 100 + COUNT, 110 + COUNT),
        TensorSpec("c", "U8", (COUNT,), 110 + COUNT, 110 + 2 * COUNT),
    ]

    assert blocks_between(specs, 0, 100) == {}
    assert blocks_between(specs, 0, 101) == {"a": {0}}
    assert blocks_between(specs, 100 + BLOCK_ELEMENTS, 100 + 2 * BLOCK_ELEMENTS) == {"a": {1}}
    end = 110 + COUNT + BLOCK_ELEMENTS
    assert blocks_between(specs, 99 + COUNT, end) == {"a": {3}, "b": {0}, "c": {0}}
    assert blocks_between(specs, 99 + COUNT, end + 1) == {"a": {3}, "b": {0}, "c": {0, 1}}


# --- what was refused is not read again -------------------------------------------------------------


async def test_a_refusal_of_unchanged_files_is_repeated_without_reading_them(
    staging: Staging, tmp_path: Path
) -> None:
    path = write(tmp_path / "50", ONES, ONES, ONES)
    wrong = "sha256:" + "0" * 64
    refusals = [await refusal_of(staging, path, wrong) for _ in range(7)]
    checked = staging.rules.inspector.checked

    assert {each.reason for each in refusals} == {Reason.DIGEST_MISMATCH}
    assert len({each.message for each in refusals}) == 1
    assert [each.retry_after_seconds for each in refusals] == [10, 20, 40, 80, 160, 300, 300]
    assert checked.count(str(path)) == 1
    await staging.stage(stage_request("50", path))
    assert checked.count(str(path)) == 2, "another digest, or none, is another question"
    os.utime(path / damage.WEIGHTS)
    again = await refusal_of(staging, path, wrong)
    assert checked.count(str(path)) == 3, "files that have changed are read again"
    assert again.retry_after_seconds == 10


async def test_a_refusal_that_may_pass_by_itself_is_not_remembered(
    staging: Staging, tmp_path: Path
) -> None:
    path = write(tmp_path / "50", ONES, ONES, bytes(COUNT))
    assert (await refusal_of(staging, path)).reason is Reason.SOURCE_NOT_READY
    assert (await refusal_of(staging, path)).retry_after_seconds == 2
    missing = await refusal_of(staging, tmp_path / "nothing")

    assert missing.reason is Reason.SOURCE_ABSENT
    assert missing.retry_after_seconds == 5
    assert (await refusal_of(staging, tmp_path / "nothing")).retry_after_seconds == 5


async def test_the_state_has_the_time_for_a_retry(serving: WorkerHarness) -> None:
    path = write_tiny(serving.root / "1")
    os.truncate(path / damage.WEIGHTS, 40)
    for seconds in (10, 20):
        await refused(serving.stage("1", path))
        failure = serving.state.stage_failure
        assert failure is not None
        assert failure.reason is Reason.CHECKPOINT_TRUNCATED
        assert failure.retry_after_seconds == seconds
