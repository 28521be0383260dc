"""The work of a worker: an operation that it reports, or that a call asks for."""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal, NamedTuple

from fleet_operator.core.identity import label

WorkKind = Literal[
    "stage",
    "compare",
    "pause",
    "load",
    "apply",
    "resume",
    "admit",
    "fence",
    "probe",
    "adapter",
    "stage-adapter",
    "compare-adapter",
    "remove-adapter",
]
"""The kinds of work that the planners ask about. A worker of a newer release may report others."""


COMPARISONS: frozenset[str] = frozenset({"compare", "compare-adapter"})
"""The kinds of work that compare files with those that a worker has read before."""


class Work(NamedTuple):
    """One piece of work.

    Fields:
        kind: a `WorkKind`, or what a newer release reports.
        version, run_id: the weights that it is about, if any.
        adapter: the adapter that a call is about. Workers do not report it.
    """

    kind: str
    version: str | None = None
    run_id: str | None = None
    adapter: str | None = None

    @property
    def subject(self) -> tuple[str, str | None]:
        """Kind and adapter. A later call with the same ones takes the place of an earlier one."""
        return self.kind, self.adapter

    def __str__(self) -> str:
        weights = None if self.version is None else label(self.version, self.run_id)
        return " ".join(part for part in (self.kind, self.adapter, weights) if part)


TAKES_TIME: frozenset[str] = frozenset({"load", "apply", "fence"})
"""The kinds of work after which a worker gets its next call about base weights, unless that is a pause."""
_TAKES_WEIGHTS = frozenset({"stage", "load", "apply", "adapter", "stage-adapter"})


class Outcome(Enum):
    """Why a call to a worker is needed again."""

    NO_EFFECT = auto()
    """It was answered with success, and the worker's state does not show its effect."""
    REVERTED = auto()
    """Its effect was there, and did not last."""
    REFUSED = auto()
    """The worker refused it, and its state does not report that."""
    UNANSWERED = auto()
    """It got no answer, from a worker that answers reads."""


class Unheeded(NamedTuple):
    """A call that a worker has not followed, although it may have answered it with success.

    Fields:
        work: the work that the call asks for.
        why: in words: what the state lacks, or the answer. Without running clocks.
        seconds: how long ago the last such call ended.
        lasts: several such calls have been sent for longer than a passing trouble lasts.
    """

    work: Work
    outcome: Outcome
    why: str
    seconds: float
    lasts: bool

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a refusal of the weights, or of the adapter's version, that it names."""
        return self.outcome is Outcome.NO_EFFECT and self.work.kind in _TAKES_WEIGHTS

    def of_base(self) -> Unheeded:
        """Returns the same with an adapter's version in the place of the base weights'."""
        return self._replace(work=self.work._replace(adapter=None))


class Ended(NamedTuple):
    """Work with base weights until whose end a worker got no bytes.

    Fields:
        work: a load, a swap or a fence.
        seen_at: when an answer last reported it, on the clock of `FleetObserved.clock_seconds`.
        running_seconds: how long it had lasted then.
    """

    work: Work
    seen_at: float
    running_seconds: float


class Compared(NamedTuple):
    """A comparison of files that a worker has ended without a refusal.

    Fields:
        work: the comparison.
        seconds: how long ago its call began. The worker has looked at the files since then.
    """

    work: Work
    seconds: float
