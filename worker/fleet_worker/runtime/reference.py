"""What every version is compared with: the checkpoint that the engine started from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fleet_worker.adapters import hub
from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import Roots
from fleet_worker.adapters.opening import open_checkpoint
from fleet_worker.adapters.reading import BLOCK_BYTES, ZeroBlocks
from fleet_worker.adapters.settling import open_settled
from fleet_worker.core.compare import check_config, check_tensors
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason, Source
from fleet_worker.runtime.ports import Inspector

_FRESH_SECONDS = 60.0
"""A file that was written to in this time may still get the parts that it lacks."""
_RETRY_AFTER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Reference:
    """Configuration and tensors of the running model.

    Fields:
        zero_blocks: Parts of its tensors that hold nothing but zeros, if that is known.
    """

    config: dict[str, Any]
    tensors: dict[str, TensorSpec]
    zero_blocks: ZeroBlocks | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, inspector: Inspector) -> Reference:
        """The reference that a checkpoint makes."""
        return cls(inspector.normalised_config(checkpoint.config), checkpoint.tensors)

    def check(self, checkpoint: Checkpoint, inspector: Inspector) -> None:
        """Raise `Refusal` if the checkpoint does not fit the running model."""
        check_config(self.config, inspector.normalised_config(checkpoint.config))
        check_tensors(self.tensors, checkpoint.tensors)

    def check_written(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint with parts that were never written, before anything of it is read.

        Writers that set a file's length first leave holes, which read as zeros. Where the running
        model has zeros as well they are taken for what a file system made of zeros.

        Errors:
            Refusal: `SourceNotReady` if it was written to lately, else `CheckpointTruncated`.
        """
        self._check_blocks(checkpoint, checkpoint.hollow_blocks(), "was never written")

    def check_filled(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint of which whole blocks are zero where the running model's are not.

        Not every file system tells what was never written.

        Errors:
            Refusal: as `check_written`.
        """
        if self.zero_blocks is not None and checkpoint.zero_blocks is not None:
            words = "is all zero, which it is not in the running model"
            self._check_blocks(checkpoint, checkpoint.zero_blocks, words)

    def _check_blocks(self, checkpoint: Checkpoint, found: ZeroBlocks, words: str) -> None:
        known = self.zero_blocks or {}
        odd = {name: blocks - known.get(name, frozenset()) for name, blocks in found.items()}
        odd = {name: blocks for name, blocks in odd.items() if blocks}
        if not odd:
            return
        count = sum(map(len, odd.values()))
        example = min(odd)
        what = (
            f"a part of {len(odd)} tensor{'s' * (len(odd) > 1)}"
            f" ({count} block{'s' * (count > 1)} of {BLOCK_BYTES // 1024} KiB), such as block"
            f" {min(odd[example])} of {example[:200]!r}, {words}"
        )
        if checkpoint.written_ago_seconds(time.time()) < _FRESH_SECONDS:
            raise Refusal(
                Reason.SOURCE_NOT_READY,
                f"the source is not ready yet: {what}",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        raise Refusal(
            Reason.CHECKPOINT_TRUNCATED,
            f"{what}; write a checkpoint under another name and rename it when it is whole, or give"
            " its digest (spec.digest)",
        )


def directory_of(source: Source) -> str:
    """The directory that a source stands for; cached repositories are looked up, not downloaded."""
    if source.hugging_face is not None:
        return hub.snapshot(source.hugging_face.repo, source.hugging_face.revision)
    return str(source.path)


def resolved(source: Source) -> Source:
    """The same source, which no later change of a branch or tag can give another meaning.

    A repository is named by the commit that the local cache has of its revision. Blocks on the
    file system.

    Errors:
        Refusal: `SourceNotFound` if it is not in the cache.
    """
    named = source.hugging_face
    if named is None:
        return source
    commit = hub.commit_of(named.repo, named.revision)
    return Source(hugging_face=named.model_copy(update={"revision": commit}))


def open_fitting(
    source: Source, roots: Roots, reference: Reference, inspector: Inspector
) -> Checkpoint:
    """Open a checkpoint below the roots that fits the running model. Blocks on the file system.

    Errors:
        Refusal: any of the source and checkpoint reasons; nothing stays open.
    """
    path = directory_of(source)
    checkpoint = open_settled(path, roots, lambda: open_checkpoint(path, roots))
    try:
        reference.check(checkpoint, inspector)
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint
