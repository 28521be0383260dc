"""A copy of the embeddings in the files of a model whose configuration ties `lm_head` to them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.refusals import refusal_from
from tests.support.slime_deltas import write_delta
from tests.support.tiny import TinyInspector, write_tiny

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, FirstBase, open_weights
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.reference import Reference, StageRules, read_accepted
from fleet_worker.protocol import Reason

EMBED = damage.bfloat16(1.0) * 8
OTHER = damage.bfloat16(1.0) * 7 + damage.bfloat16(2.0)
HEAD = "lm_head.weight"


def write(directory: Path, head: bytes | None, *, tied: bool = True) -> Path:
    """Write a checkpoint with embeddings, and a head with these bytes. None: without a head."""
    write_tiny(directory, tie_word_embeddings=tied)
    tensors: damage.Tensors = {"embed.weight": ("BF16", [2, 4], EMBED)}
    if head is not None:
        tensors[HEAD] = ("BF16", [2, 4], head)
    damage.write_tensors(directory / damage.WEIGHTS, tensors)
    return directory


@contextmanager
def opened(directory: Path, bases: Bases | None = None) -> Iterator[Checkpoint]:
    checkpoint = open_weights(str(directory), None, bases or Bases())
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def reference_of(tmp_path: Path, head: bytes | None, **options: Any) -> Reference:
    with opened(write(tmp_path / "model", head, **options)) as model:
        return Reference.of(model, TinyInspector())


def offer(
    reference: Reference, directory: Path, budget: int, bases: Bases | None = None
) -> dict[str, str]:
    """Stage a version; return its tensors that the load copies."""
    rules = StageRules(Roots([directory.parent]), reference, TinyInspector(), budget)
    with opened(directory, bases) as version:
        reference.check(version, rules.inspector)
        read_accepted(version, rules, digest=None, budget=budget, check_cancelled=lambda: None)
        return version.copies


@pytest.mark.parametrize("budget", [0, 1 << 20], ids=["on disk", "in memory"])
def test_a_version_of_a_tied_model_has_an_equal_copy_or_leaves_it_out(
    tmp_path: Path, budget: int
) -> None:
    reference = reference_of(tmp_path, EMBED)

    assert offer(reference, write(tmp_path / "1", EMBED), budget) == {}
    assert offer(reference, write(tmp_path / "2", None), budget) == {HEAD: "embed.weight"}
    refusal = refusal_from(offer, reference, write(tmp_path / "3", OTHER), budget)
    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert HEAD in refusal.message


@pytest.mark.parametrize("budget", [0, 1 << 20], ids=["on disk", "in memory"])
def test_a_copy_is_compared_as_a_delta_makes_it(tmp_path: Path, budget: int) -> None:
    reference = reference_of(tmp_path, EMBED)
    base, new = tmp_path / "model", write(tmp_path / "other", OTHER)
    delta = write_delta(base, new, tmp_path / "step_1", version=1, base_version=0)
    bases = Bases(first=FirstBase(str(base), "base"))
    refusal = refusal_from(offer, reference, delta, budget, bases)

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert HEAD in refusal.message


def test_a_version_of_a_model_with_a_head_of_its_own_has_one_too(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, OTHER)

    assert offer(reference, write(tmp_path / "1", OTHER), 0) == {}
    for number, head in ((2, None), (3, EMBED)):
        refusal = refusal_from(offer, reference, write(tmp_path / str(number), head), 0)
        assert refusal.reason is Reason.CHECKPOINT_MISMATCH


def test_a_model_that_is_not_tied_may_have_equal_and_different_heads(tmp_path: Path) -> None:
    reference = reference_of(tmp_path, EMBED, tied=False)

    for number, head in enumerate((EMBED, OTHER)):
        assert offer(reference, write(tmp_path / str(number), head, tied=False), 0) == {}


def test_tensors_of_two_types_are_not_a_copy_of_each_other(tmp_path: Path) -> None:
    """A load casts one of them, and may so make them equal."""
    reference = reference_of(tmp_path, EMBED)
    version = write(tmp_path / "1", EMBED)
    mixed = damage.read_tensors(version / damage.WEIGHTS)
    mixed[HEAD] = ("F32", [2, 4], struct.pack("<8f", *[1.0] * 8))
    damage.write_tensors(version / damage.WEIGHTS, mixed)
    refusal = refusal_from(offer, reference, version, 0)

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert HEAD in refusal.message


def test_a_copy_of_another_type_is_not_compared(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", EMBED)
    damage.edit_tensors(directory, lambda t: t.update({HEAD: ("F32", [2, 4], EMBED * 2)}))
    with opened(directory) as model:
        assert Reference.of(model, TinyInspector()).copy is None
