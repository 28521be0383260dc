"""The weights that a worker has staged or loaded, and the labels that belong to them alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class Weights:
    """A version whose checkpoint is open: staged, loading, or loaded.

    Fields:
        source: where the bytes are; a repository is named by its commit.
        read_bytes: that the stage has read from the store. None of the weights of a start.
        read_from: uid of the pod whose worker the bytes came from; None for the store.
        by_directory: the trainer sent a directory and no run, so the directory counts as the run.
        name: the name of the weights in the spans of replies. It is made once, since each token of a
            stream asks for it.
    """

    version: str
    source: Source
    digest: str
    checkpoint: Checkpoint
    run_id: str | None = None
    in_memory: bool = False
    stage_seconds: float | None = None
    read_bytes: int | None = None
    read_from: str | None = None
    by_directory: bool = False
    name: WeightName = field(init=False, compare=False)

    def __post_init__(self) -> None:
        scope = scope_of(self.checkpoint.path) if self.run_id is None else None
        name = WeightName(self.version, self.run_id, self.mark, scope)
        object.__setattr__(self, "name", name)

    @property
    def mark(self) -> str:
        """A short digest, which distinguishes them from other weights of the same version."""
        return short_digest(self.digest)

    @property
    def peer_bytes(self) -> int:
        """The bytes that the stage has read from a peer, while the checkpoint is open."""
        return self.checkpoint.peer_bytes

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
        return (Label(self.version, self.run_id if self.run_id is not None else directory),)

    @property
    def labels_in_engine(self) -> tuple[Label, ...]:
        """Labels that no other bytes may have, once these are in the engine."""
        # With the directory, because a later request may name it instead of a run.
        return *self.labels, Label(self.version, self.checkpoint.path)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about parts of the files that the worker ignores or casts."""
        return self.checkpoint.remarks

    def as_state(self, copies: str | None = None) -> Staged:
        """The staged version as the state document shows it; `copies`: see `Staged`."""
        return Staged(
            version=self.version,
            run_id=self.run_id,
            source=self.source,
            digest=self.digest,
            size_bytes=self.checkpoint.size_bytes,
            in_memory=self.in_memory,
            read_bytes=self.read_bytes,
            read_from=self.read_from,
            copies=copies,
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
        group: the run of the process group that the trainer sent them over.
        mark: distinguishes them from other weights of the same version and run.
        repeat: how often the group has had the version, counted from 1, each time for other weights.
        name: as of `Weights`.
    """

    version: str
    group: str
    mark: str
    repeat: int = 1
    source: None = None
    digest: None = None
    checkpoint: None = None
    in_memory: bool = False
    remarks: tuple[str, ...] = ()
    name: WeightName = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", WeightName(self.version, self.run_id))

    @property
    def run_id(self) -> str:
        """The run of the version: that of the group, and for a repetition one of its own."""
        return self.group if self.repeat == 1 else f"{self.group}.{self.repeat}"

    @property
    def identity(self) -> str:
        """The mark, which no other weights have."""
        return self.mark

    @property
    def origin(self) -> str:
        """`a collective`, for messages."""
        return "a collective"

    @property
    def labels(self) -> tuple[Label, ...]:
        """Labels that must not belong to other weights."""
        return (Label(self.version, self.run_id),)

    @property
    def labels_in_engine(self) -> tuple[Label, ...]:
        """Labels that no other weights may have, once these are in the engine."""
        return self.labels


def in_free_run(labels: Labels, weights: Received) -> Received:
    """Return received weights in a run in which no other weights have their version.

    It is too late to refuse the name of weights that are in the engine: the ones before are gone.
    """
    while not all(labels.is_free(label, weights.identity) for label in weights.labels):
        weights = replace(weights, repeat=weights.repeat + 1)
    return weights


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


def renamed(weights: Weights | Received, version: str, labels: Labels) -> Weights | Received:
    """Return weights under another version.

    Errors:
        Refusal: `VersionReused`; other files have this version.
    """
    if isinstance(weights, Received):
        return in_free_run(labels, replace(weights, version=version, repeat=1))
    new = replace(weights, version=version)
    check_labels(labels, new)
    return new


def description_of(weights: Named) -> str:
    """Describe weights, or the weights that a request names: `version 43 of run a`."""
    return described(weights.version, weights.run_id, weights.digest)
