"""The weights that a worker has staged or loaded, and the labels that belong to them alone."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.identity import (
    Label,
    Labels,
    WeightName,
    described,
    scope_of,
    short_digest,
)
from fleet_worker.protocol import Named, Source, Staged, StageRequest

# Scopes of labels, in addition to runs and directories.
_COLLECTIVE = "a collective"
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Weights:
    """A version whose checkpoint is open: staged, loading, or loaded.

    Fields:
        source: where the bytes are; a repository is named by its commit.
        by_directory: the trainer sent a directory and no run, so the directory counts as the run.
    """

    version: str
    source: Source
    digest: str
    checkpoint: Checkpoint
    run_id: str | None = None
    in_memory: bool = False
    stage_seconds: float | None = None
    by_directory: bool = False

    @property
    def name(self) -> WeightName:
        """The name of the weights in the spans of replies."""
        scope = scope_of(self.checkpoint.path) if self.run_id is None else None
        return WeightName(self.version, self.run_id, self.mark, scope)

    @property
    def mark(self) -> str:
        """A short digest, which distinguishes them from other weights of the same version."""
        return short_digest(self.digest)

    @property
    def identity(self) -> str:
        """The digest, which no other bytes have."""
        return self.digest

    @property
    def origin(self) -> str:
        """The directory, for messages."""
        return self.checkpoint.path

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that must not belong to other bytes."""
        directory = self.checkpoint.path if self.by_directory else None
        own = Label(self.version, self.run_id if self.run_id is not None else directory)
        return own, Label(self.version, _COLLECTIVE)

    @property
    def labels_in_engine(self) -> tuple[Label, ...]:
        """Labels that no other bytes may have, once these are in the engine."""
        # With the directory, because a later request may name it instead of a run.
        return (
            self.labels[0],
            Label(self.version, self.checkpoint.path),
            Label(self.version, _FILES),
        )

    def as_state(self) -> Staged:
        """The staged version as the state document shows it."""
        return Staged(
            version=self.version,
            run_id=self.run_id,
            source=self.source,
            digest=self.digest,
            size_bytes=self.checkpoint.size_bytes,
            in_memory=self.in_memory,
        )

    def fulfils(self, request: StageRequest) -> bool:
        """Whether a request asks for exactly these weights."""
        return (
            self.version == request.version
            and self.run_id == request.run_id
            and self.source == request.source
            and request.digest in (None, self.digest)
        )


@dataclass(frozen=True, slots=True)
class Received:
    """Weights in the engine that came over a collective, and that no file can restore.

    Fields:
        mark: distinguishes them from other weights of the same version.
        group: number of the process group that the trainer sent them over.
    """

    version: str
    mark: str
    group: int = 0
    source: None = None
    run_id: None = None
    digest: None = None
    checkpoint: None = None
    in_memory: bool = False

    @property
    def name(self) -> WeightName:
        """The name of the weights in the spans of replies."""
        return WeightName(self.version, scope=f"process group {self.group}")

    @property
    def identity(self) -> str:
        """The mark, which no other weights have."""
        return self.mark

    @property
    def origin(self) -> str:
        """`a collective`, for messages."""
        return _COLLECTIVE

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that must not belong to other weights. Without a digest only labels differ."""
        return Label(self.version, _COLLECTIVE), Label(self.version, _FILES)

    @property
    def labels_in_engine(self) -> tuple[Label, ...]:
        """Labels that no other weights may have, once these are in the engine."""
        return (Label(self.version, _COLLECTIVE),)


def is_named_by(weights: Weights | Received, wanted: Named) -> bool:
    """Whether a request names these weights."""
    return (
        weights.version == wanted.version
        and wanted.run_id in (None, weights.run_id)
        and wanted.digest in (None, weights.digest)
    )


def check_labels(labels: Labels, weights: Weights | Received) -> None:
    """Check that no label of these weights belongs to other weights.

    Errors:
        Refusal: `VersionReused`.
    """
    for label in weights.labels:
        labels.check(label, weights.identity, weights.origin)


def description_of(weights: Named) -> str:
    """Describe weights, or the weights that a request names: `version 43 of run a`."""
    return described(weights.version, weights.run_id, weights.digest)
