"""How versions are written: no libraries of the extra `delta` are needed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlfleet.checkpoints import READABLE

MOST_IN_CHAIN = 64
"""Deltas in a row that a worker applies to a full checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas:
    """When a version is written as a delta, and when in full, for `Weights.publish(delta=…)`.

    Fields:
        anchor_every: One of this number of versions is a full checkpoint, from which a new worker begins.
        max_changed_share: If more than this share of all elements has changed, 0 to 1, the version is full.
        mode: Rights that are added to what is written, as for `make_readable`; None adds none.

    Errors: ValueError.

    >>> Deltas(anchor_every=50).max_changed_share
    0.3
    """

    anchor_every: int = 20
    max_changed_share: float = 0.3
    mode: int | None = READABLE

    def __post_init__(self) -> None:
        if not 1 <= self.anchor_every <= MOST_IN_CHAIN:
            raise ValueError(
                f"anchor_every is {self.anchor_every}; it must be between 1 and {MOST_IN_CHAIN}, the longest "
                "chain that workers follow"
            )
        if not 0 <= self.max_changed_share <= 1:
            raise ValueError(
                f"max_changed_share is {self.max_changed_share}; it must be between 0 and 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Weights to write: one of the first three. The fields are arguments of `Weights.publish`.

    Errors: ValueError.
    """

    state_dict: Mapping[str, Any] | None = None
    model: Any = None
    directory: Path | None = None
    config_from: Path | None = None

    def __post_init__(self) -> None:
        given = [one for one in (self.state_dict, self.model, self.directory) if one is not None]
        if len(given) > 1:
            raise ValueError("only one of state_dict, model and directory can be published at once")
        if (self.state_dict is None) != (self.config_from is None):
            raise ValueError(
                "a state dict has no config.json: state_dict and config_from belong together. config_from "
                "is a directory with that file, such as the model's at the start"
            )

    def __bool__(self) -> bool:
        """Whether there are weights to write."""
        return not (self.state_dict is None and self.model is None and self.directory is None)
