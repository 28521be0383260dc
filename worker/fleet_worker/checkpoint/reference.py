"""The reference checkpoint: every version must have its configuration and its tensors.

It is the checkpoint that the engine started from, not the engine's parameters. vLLM fuses
and renames parameters (q, k and v become one `qkv_proj`), and packed linear layers on CPUs have no
shape. The parameters that a load writes depend on the names, shapes and types of the tensors only.
So a checkpoint that equals the reference writes all that the start wrote. Every load also checks
that the start wrote all parameters (`WorkerExtension`), because vLLM checks only some of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fleet_worker.checkpoint.blocks import BLOCK_ELEMENTS, ZeroBlocks
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.completeness import open_settled
from fleet_worker.checkpoint.config_code import ConfigCode
from fleet_worker.checkpoint.configuration import Size, check_config, check_sizes, sizes_of, used
from fleet_worker.checkpoint.delta_chain import (
    Bases,
    FirstBase,
    HeldBase,
    open_delta_from_peer,
    open_weights,
)
from fleet_worker.checkpoint.deltas import delta_mismatch
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.identity import check_digest
from fleet_worker.checkpoint.inspector import Inspector
from fleet_worker.checkpoint.peer_files import open_from_peer
from fleet_worker.checkpoint.refused_sources import retried_if
from fleet_worker.checkpoint.remarks import Defaults, remarks_on
from fleet_worker.checkpoint.sources import directory_of
from fleet_worker.checkpoint.stager_messages import Place
from fleet_worker.checkpoint.tensors import cast_types, check_tensors
from fleet_worker.checkpoint.tied import TiedCopy, check_tied, fill_in, pair_of, tied_copy
from fleet_worker.errors import Refusal, counted
from fleet_worker.protocol import Reason, Source

_FRESH_SECONDS = 60.0
"""A file that was written to within this time may be incomplete only for now."""
_RETRY_AFTER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Reference:
    """Configuration and tensors of the running model.

    Fields:
        config: the part of its configuration that may compute, normalised (defaults filled in).
        sizes: the values that decide how large its configuration is.
        code: the code that computes it.
        unread_keys: the keys of its config.json that no code reads, with their values.
        defaults: its end tokens and sampling defaults.
        copy: the copy of its embeddings, if its files have one.
        zero_blocks: blocks of its tensors that are all zero, if they are known.
    """

    config: dict[str, Any]
    sizes: frozenset[Size]
    code: ConfigCode
    unread_keys: dict[str, Any]
    defaults: Defaults
    tensors: dict[str, TensorSpec]
    copy: TiedCopy | None = None
    zero_blocks: ZeroBlocks | None = None

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        inspector: Inspector,
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> Reference:
        """Make a checkpoint the reference. Reads a copy of the embeddings; blocks."""
        code = inspector.code_of(checkpoint)
        own, unread_keys = used(checkpoint.config, code)
        config = inspector.normalised_config(checkpoint.config, code)
        return cls(
            config,
            frozenset((*sizes_of(own), *sizes_of(config))),
            code,
            unread_keys,
            Defaults(checkpoint.config, checkpoint.texts),
            checkpoint.tensors,
            tied_copy(config, checkpoint, check_cancelled),
        )

    def check(self, checkpoint: Checkpoint, inspector: Inspector) -> None:
        """Check that a checkpoint fits the running model, and set its `casts`, `pair` and `remarks`.

        Errors:
            Refusal: `CheckpointMismatch`.
        """
        own, unread_keys = used(checkpoint.config, self.code)
        # Filling in defaults may take gigabytes and minutes for a small file.
        check_sizes(self.sizes, own)
        check_config(self.config, inspector.normalised_config(checkpoint.config, self.code))
        tensors = fill_in(self.copy, checkpoint)
        checkpoint.casts = check_tensors(self.tensors, tensors)
        checkpoint.pair = pair_of(self.copy, checkpoint)
        checkpoint.remarks = remarks_on(
            model=self.defaults,
            offered=Defaults(checkpoint.config, checkpoint.texts),
            unread_keys=[k for k, v in unread_keys.items() if v != self.unread_keys.get(k)],
            cast=cast_types(checkpoint.casts, tensors),
        )

    def check_written(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint with parts that were never written, before its bytes are read.

        A writer that sets a file's length first leaves holes, which read as zeros. Holes are
        accepted where the running model is zero too: file systems store zeros as holes.

        Errors:
            Refusal: `SourceNotReady` if it was written to recently, else `CheckpointTruncated`.
        """
        self._inspect_blocks(checkpoint, checkpoint.hollow_blocks(), "was never written")

    def check_filled(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint with blocks that are zero where the running model's are not.

        This finds holes on file systems that do not report them.

        Errors:
            Refusal: as `check_written`.
        """
        if self.zero_blocks is not None and checkpoint.zero_blocks is not None:
            fault = "is all zero, and is not zero in the running model"
            self._inspect_blocks(checkpoint, checkpoint.zero_blocks, fault)

    def _inspect_blocks(self, checkpoint: Checkpoint, found: ZeroBlocks, fault: str) -> None:
        known = self.zero_blocks or {}
        suspect = {name: blocks - known.get(name, frozenset()) for name, blocks in found.items()}
        suspect = {name: blocks for name, blocks in suspect.items() if blocks}
        if not suspect:
            return
        count = sum(map(len, suspect.values()))
        example = min(suspect)
        message = (
            f"a part of {counted(len(suspect), 'tensor')}"
            f" ({counted(count, 'block')} of {BLOCK_ELEMENTS} elements), such as block"
            f" {min(suspect[example])} of {example[:200]!r}, {fault}"
        )
        # A time far in the future comes from a writer whose clock is ahead, and says nothing.
        if abs(checkpoint.written_ago_seconds(time.time())) < _FRESH_SECONDS:
            raise Refusal(
                Reason.SOURCE_NOT_READY,
                f"the source is not ready yet: {message}",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        raise Refusal(
            Reason.CHECKPOINT_TRUNCATED,
            f"{message}; write a checkpoint under another name and rename it when it is complete,"
            " or set its digest (spec.digest)",
        )


@dataclass(frozen=True, slots=True)
class StageRules:
    """The limits and checks of staging.

    Fields:
        budget_bytes: the memory for the bytes of checkpoints and LoRA adapters.
        first_base: the base of the first delta of a run.
    """

    roots: Roots
    reference: Reference
    inspector: Inspector
    budget_bytes: int
    first_base: FirstBase | None = None


def open_fitting(source: Source, rules: StageRules, held: Sequence[HeldBase] = ()) -> Checkpoint:
    """Open a checkpoint below the roots, or a delta, and check that it fits the running model.

    Blocks on the file system.

    Args:
        source: Where it is.
        rules: Limits and checks.
        held: Weights that may be the base of a delta. They are closed.

    Errors:
        Refusal: Any of the source and checkpoint reasons; the files are closed.
    """
    bases = Bases(held, rules.first_base)
    try:
        path = directory_of(source)
        opening = partial(open_weights, path, rules.roots, bases)
        checkpoint = open_settled(path, rules.roots, opening)
    finally:
        bases.close()
    return _fitting(checkpoint, rules)


def open_fitting_at(
    place: Place, path: str, rules: StageRules, held: Sequence[HeldBase] = ()
) -> Checkpoint:
    """Open a version that a peer holds, and check that it fits the running model. Blocks.

    Args:
        place: The peer.
        path: The source, as text.
        rules: Limits and checks.
        held: Weights that may be the base of a delta that the peer has. They are closed.

    Errors:
        Refusal: `PeerUnreadable`, or any of the checkpoint reasons.
    """
    try:
        checkpoint = open_delta_from_peer(place, path, held)
    finally:
        Bases(held).close()
    return _fitting(open_from_peer(place, path) if checkpoint is None else checkpoint, rules)


def _fitting(checkpoint: Checkpoint, rules: StageRules) -> Checkpoint:
    try:
        with retried_if(checkpoint.changed is not None):
            rules.reference.check(checkpoint, rules.inspector)
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def check_result(checkpoint: Checkpoint, found: str) -> None:
    """Refuse with `DeltaMismatch` a delta whose result has another digest than the delta names."""
    changed = checkpoint.changed
    if changed is not None and changed.result_digest not in (None, found):
        raise delta_mismatch(
            f"the delta and its base give weights with digest {found}, and the delta was published for"
            f" {changed.result_digest}. A base with other bytes does that"
        )


def read_accepted(
    checkpoint: Checkpoint,
    rules: StageRules,
    *,
    digest: str | None,
    budget: int,
    check_cancelled: Callable[[], None],
) -> tuple[bool, str]:
    """Read and check the bytes of a checkpoint whose tensors fit the running model. Blocks.

    Args:
        checkpoint: The result of `open_fitting`.
        rules: Limits and checks.
        digest: The expected digest. It makes the checks for missing parts unnecessary.
        budget: Largest number of bytes to keep in memory.
        check_cancelled: Raises to cancel.

    Returns:
        Whether the bytes are in memory, and their digest.

    Errors:
        Refusal: any of the checkpoint reasons. The files stay open.
    """
    if digest is None:
        rules.reference.check_written(checkpoint)
    in_memory = rules.inspector.read(checkpoint, budget=budget, check_cancelled=check_cancelled)
    found = checkpoint.digest(check_cancelled)
    check_result(checkpoint, found)
    check_digest(digest, found, "the files")
    check_tied(rules.reference.copy, checkpoint)
    if digest is None:
        rules.reference.check_filled(checkpoint)
    if not checkpoint.is_from_peer:
        checkpoint.check_same_on_disk(rules.roots)
    return in_memory, found
