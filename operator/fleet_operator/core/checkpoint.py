"""Weights with their name and their source, as the planners compare and record them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from fleet_operator.core.identity import (
    TRANSFERRED_DIGEST,
    WeightsId,
    file_digest,
    label,
    same_weights,
)
from rlfleet_resources.base import renewed
from rlfleet_resources.fleet_status import AppliedWeights, RecordedWeights
from rlfleet_resources.source import TRANSFERRED, UNREADABLE, Transferred, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights with their name and their source.

    Fields:
        digest: of the files, if the trainer has named it or the fleet has pinned it.
        pinned: the digest comes from the fleet's pin, not from the trainer.
        reused: the version names other weights already, so no worker has these.
        awaited: new to the fleet: a directory that does not exist may still be written.
    """

    version: str
    source: WeightSource
    digest: str | None = None
    run_id: str | None = None
    pinned: bool = False
    reused: bool = False
    awaited: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.label} ({self.source})"

    @property
    def is_transferred(self) -> bool:
        """Whether no worker can load the weights again. They came over a collective, or the workers that
        serve them report a source which no resource could have, or another release has recorded it.
        """
        return self.digest == TRANSFERRED_DIGEST or isinstance(self.source, Transferred)

    @property
    def label(self) -> str:
        """The version, with the run if there is one."""
        return label(self.version, self.run_id)

    @classmethod
    def recorded(cls, weights: RecordedWeights) -> Self:
        """Returns the weights of a status."""
        name = WeightsId(weights.version, weights.run_id, weights.digest)
        if weights.unreadable and weights.source is None:
            return cls.passing(name, UNREADABLE)
        if weights.source is None:
            return cls.transferred(name)
        return cls.passing(name, weights.source)

    @classmethod
    def transferred(cls, weights: WeightsId) -> Self:
        """Returns weights that came over a collective."""
        return cls.passing(weights._replace(digest=TRANSFERRED_DIGEST), TRANSFERRED)

    @classmethod
    def passing(cls, weights: WeightsId, source: WeightSource) -> Self:
        """Returns weights that workers hold, but no object names any more."""
        version, run_id, digest = weights
        return cls(version=version, source=source, digest=digest, run_id=run_id)

    def record(self) -> dict[str, Any]:
        """Returns the fields of a `RecordedWeights`."""
        return {
            "version": self.version,
            "source": None if self.is_transferred else self.source,
            "digest": file_digest(self.digest),
            "run_id": self.run_id,
        }

    def to_record(
        self, before: AppliedWeights | None, *, applied_at: datetime | None
    ) -> AppliedWeights:
        """Returns the entry for a status. `before`: its entry now."""
        if before is None:
            before = AppliedWeights(version=self.version)
        return renewed(
            before,
            **self.record(),
            applied_at=applied_at,
            unreadable=before.unreadable and same_weights(self, Checkpoint.recorded(before)),
        )
