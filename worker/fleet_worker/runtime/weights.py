"""Weights that a worker holds or has: what they are called, and what they keep others from being called."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core.labels import Label, Labels
from fleet_worker.core.weight_names import WeightName, described, short_digest
from fleet_worker.protocol import Named, Source, Staged, StageRequest

# Scopes of versions besides runs and directories.
_COLLECTIVE = "a collective"
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Weights:
    """A version whose checkpoint is open: staged, loading, or loaded.

    Fields:
        source: where the bytes are; a revision of a repository is its commit.
        by_directory: a trainer named the directory and no run: another directory is another run.
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
        """What spans call them."""
        return WeightName(self.version, self.run_id, self.mark)

    @property
    def mark(self) -> str:
        """What tells them from all other weights of their version."""
        return short_digest(self.digest)

    @property
    def identity(self) -> str:
        """What no other bytes have."""
        return self.digest

    @property
    def origin(self) -> str:
        """Where they come from, in words."""
        return self.checkpoint.path

    @property
    def labels(self) -> tuple[Label, ...]:
        """What no other bytes may be called."""
        directory = self.checkpoint.path if self.by_directory else None
        own = Label(self.version, self.run_id if self.run_id is not None else directory)
        return own, Label(self.version, _COLLECTIVE)

    @property
    def stands_for(self) -> tuple[Label, ...]:
        """What they keep other bytes from being called, once they are in the engine."""
        # Whoever names directories later must find that of these weights.
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
        """Whether staging this again would change nothing."""
        return (
            self.version == request.version
            and self.run_id == request.run_id
            and self.source == request.source
            and request.digest in (None, self.digest)
        )


@dataclass(frozen=True, slots=True)
class Received:
    """Weights in the engine that came over a collective: no file could bring them back.

    Fields:
        mark: what tells them from all other weights of their version.
    """

    version: str
    mark: str
    source: None = None
    run_id: None = None
    digest: None = None
    checkpoint: None = None
    in_memory: bool = False

    @property
    def name(self) -> WeightName:
        """What spans call them."""
        return WeightName(self.version)

    @property
    def identity(self) -> str:
        """What no other weights have."""
        return self.mark

    @property
    def origin(self) -> str:
        """Where they come from, in words."""
        return _COLLECTIVE

    @property
    def labels(self) -> tuple[Label, ...]:
        """What no other weights may be called: without a digest, nothing else tells them apart."""
        return Label(self.version, _COLLECTIVE), Label(self.version, _FILES)

    @property
    def stands_for(self) -> tuple[Label, ...]:
        """What they keep other weights from being called, once they are in the engine."""
        return (Label(self.version, _COLLECTIVE),)


def is_named_by(weights: Weights | Received, wanted: Named) -> bool:
    """Whether a request means these weights."""
    return (
        weights.version == wanted.version
        and wanted.run_id in (None, weights.run_id)
        and wanted.digest in (None, weights.digest)
    )


def check_labels(labels: Labels, weights: Weights | Received) -> None:
    """Make sure that no other weights have been called as these would be.

    Errors:
        Refusal: `VersionReused`.
    """
    for label in weights.labels:
        labels.check(label, weights.identity, weights.origin)


def in_words(weights: Named) -> str:
    """Which weights a request means, or a worker has."""
    return described(weights.version, weights.run_id, weights.digest)
