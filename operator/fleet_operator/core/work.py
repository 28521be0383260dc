"""The work of a worker: an operation that it reports, or that a call asks for."""

from __future__ import annotations

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


class Compared(NamedTuple):
    """A comparison of files that a worker has ended without a refusal.

    Fields:
        work: the comparison.
        seconds: how long ago its call began. The worker has looked at the files since then.
    """

    work: Work
    seconds: float
