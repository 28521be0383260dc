"""The last desired versions, as the operator names them to a worker, and the lag of weights behind them.

Only durations pass between the two machines, so their clocks need not agree.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from fleet_worker.protocol.paths import WANTED_PATH
from fleet_worker.protocol.requests import Request
from fleet_worker.protocol.types import MAX_TERM, Message, RunId
from rlfleet_resources.source import VersionLabel

MAX_WANTED = 16
_MAX_SECONDS = 1e10


class VersionOf(NamedTuple):
    """A version and its run, where nothing else of the weights matters."""

    version: str
    run_id: str | None = None


class Lag(NamedTuple):
    """How far weights are behind the desired version.

    Fields:
        versions: how many versions were desired after them.
        seconds: since the first of these was desired; infinite if that is not known.
    """

    versions: int
    seconds: float


class Wanted(Message):
    """A version that is or was desired. `seconds`: since then."""

    version: VersionLabel
    run_id: RunId | None = None
    seconds: Annotated[float, Field(ge=0, le=_MAX_SECONDS)]


class WantedRequest(Request):
    """`PUT /v1/worker/wanted`: the desired version and those before it. Answers like a read of the state.

    The operator reads workers of a fleet with `spec.staleness` so. An empty list ends all that an earlier
    call said.

    Fields:
        wanted: newest first.
        complete: no other version was desired before these.
        max_versions / max_seconds: the lag above which the worker refuses requests that generate. The
            seconds count on from this call: after it a newer version may be desired at any time.
        term: of the leader. Calls of an earlier one are refused.
    """

    path: ClassVar[str] = WANTED_PATH

    wanted: Annotated[tuple[Wanted, ...], Field(max_length=MAX_WANTED)] = ()
    complete: bool = True
    max_versions: Annotated[int, Field(ge=0, le=MAX_WANTED)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=_MAX_SECONDS)] | None = None
    term: Annotated[int, Field(ge=0, le=MAX_TERM)]

    @property
    def news(self) -> tuple[object, ...]:
        """The content without the ages, which change with each call."""
        versions = tuple((each.version, each.run_id) for each in self.wanted)
        return versions, self.complete, self.max_versions, self.max_seconds, self.term

    @property
    def limits(self) -> bool:
        """Whether a worker refuses requests by it."""
        return bool(self.wanted) and (self.max_versions, self.max_seconds) != (None, None)


def lag_of(wanted: tuple[Wanted, ...], weights: VersionOf, *, complete: bool = True) -> Lag:
    """The lag of weights at the time of a list. `wanted` and `complete`: as in `WantedRequest`."""
    for number, each in enumerate(wanted):
        if each.version == weights.version and each.run_id in {None, weights.run_id}:
            return Lag(number, wanted[number - 1].seconds if number else 0.0)
    oldest = wanted[-1].seconds if wanted and complete else math.inf
    return Lag(len(wanted), oldest)
