"""What every version is compared with: the checkpoint that the engine started from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet_worker.adapters import hub
from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import Roots
from fleet_worker.adapters.opening import open_checkpoint
from fleet_worker.adapters.settling import open_settled
from fleet_worker.core.compare import check_config, check_tensors
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Source
from fleet_worker.runtime.ports import Inspector


@dataclass(frozen=True, slots=True)
class Reference:
    """Configuration and tensors of the running model."""

    config: dict[str, Any]
    tensors: dict[str, TensorSpec]

    @classmethod
    def of(cls, checkpoint: Checkpoint, inspector: Inspector) -> Reference:
        """The reference that a checkpoint makes."""
        return cls(inspector.normalised_config(checkpoint.config), checkpoint.tensors)

    def check(self, checkpoint: Checkpoint, inspector: Inspector) -> None:
        """Raise `Refusal` if the checkpoint does not fit the running model."""
        check_config(self.config, inspector.normalised_config(checkpoint.config))
        check_tensors(self.tensors, checkpoint.tensors)


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
