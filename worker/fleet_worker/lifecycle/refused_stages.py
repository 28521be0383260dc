"""The refusals of stages that the worker reports.

The operator chooses between sources by the reported refusals. If it saw only the last one, it would try
a refused source again after trying another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

MAX_REPORTED = 4


class Refused(Protocol):
    """A refusal of a version of a run."""

    @property
    def version(self) -> str | None:
        """The version that was refused."""

    @property
    def run_id(self) -> str | None:
        """The run that the version belongs to, if the request named one."""


R = TypeVar("R", bound=Refused)


def with_refusal(before: Sequence[R], refusal: R) -> tuple[R, ...]:
    """Return the refusals to report, newest first: the last one of each version of a run, at most 4."""
    others = without_version(before, refusal.version, refusal.run_id)
    return (refusal, *others)[:MAX_REPORTED]


def without_version(before: Sequence[R], version: str | None, run_id: str | None) -> tuple[R, ...]:
    """Return the refusals to report after a version was staged: those of other versions stay.

    The worker may stage the fallback of a version that it has refused. Without the refusal, the operator
    would stage the refused version again at once, and read both in turn forever.
    """
    return tuple(r for r in before if (r.version, r.run_id) != (version, run_id))
