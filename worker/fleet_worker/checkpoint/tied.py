"""A copy of the embeddings in the file, although the configuration ties `lm_head` to them.

Such a copy is `lm_head.weight`, and Qwen3-0.6B has one. After its start vLLM keeps the two as one parameter if they
are equal, and any later load writes both tensors into it. So within a fleet they are equal in all
versions or in none. transformers leaves the copy out when it saves.

Source: `maybe_untie_word_embeddings` and `maybe_retie_word_embeddings` of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.pairs import Pair, are_equal
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TiedCopy:
    """Names of two tensors: the copy, and the embeddings.

    Fields:
        is_equal: whether they are equal in the running model, so that vLLM keeps them as one parameter.
    """

    name: str
    original: str
    is_equal: bool


def tied_copy(
    config: Mapping[str, Any], checkpoint: Checkpoint, check_cancelled: Callable[[], None]
) -> TiedCopy | None:
    """Return the copy that the running model's files have; reads both tensors. `config`: normalised."""
    tensors = checkpoint.tensors
    heads = [name for name in tensors if name.endswith(_HEAD)]
    if config.get("tie_word_embeddings") is not True or len(heads) != 1:
        return None
    (head,) = heads
    same = [name for name, spec in tensors.items() if spec.signature == tensors[head].signature]
    if len(same) != 2:
        return None
    (original,) = {*same} - {head}
    pair = (head, original)
    is_equal = are_equal(pair, checkpoint.files, checkpoint.specs, check_cancelled, held={})
    return TiedCopy(head, original, is_equal)


def fill_in(copy: TiedCopy | None, checkpoint: Checkpoint) -> Mapping[str, TensorSpec]:
    """Return the tensors that a load of the checkpoint writes: those of its files, and a copy left out."""
    tensors = checkpoint.tensors
    if copy is None or not copy.is_equal or copy.name in tensors or copy.original not in tensors:
        return tensors
    checkpoint.copies = {copy.name: copy.original}
    return tensors | {copy.name: tensors[copy.original]}


def pair_of(copy: TiedCopy | None, checkpoint: Checkpoint) -> Pair | None:
    """Return the tensors that a pass must compare for `check_tied`, after `fill_in`."""
    if copy is None or copy.name in checkpoint.copies:
        return None
    return copy.name, copy.original


def check_tied(copy: TiedCopy | None, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose copy is equal where that of the running model is not, or the reverse.

    Its bytes have been read. Errors: Refusal `CheckpointMismatch`.
    """
    if copy is None or checkpoint.is_pair_equal in (None, copy.is_equal):
        return
    found, running = ("differs from", "equal") if copy.is_equal else ("equals", "different")
    raise Refusal(
        Reason.CHECKPOINT_MISMATCH,
        f"{copy.name[:200]!r} {found} {copy.original[:200]!r}, and in the running model they are"
        f" {running}: config.json has tie_word_embeddings, so vLLM keeps equal ones as one parameter;"
        " start the fleet on a model with tie_word_embeddings: false",
    )
