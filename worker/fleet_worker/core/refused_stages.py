"""The refusals of stages that a worker reports.

Readers choose between sources by them: a reader that knows the last refusal only would take a source
for untried while another one is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

REPORTED_AT_MOST = 4


class Refused(Protocol):
    """A refusal of a version of a run."""

    @property
    def version(self) -> str | None:
        """The version that was refused."""

    @property
    def run_id(self) -> str | None:
        """The run that it belongs to, if one was named."""


R = TypeVar("R", bound=Refused)


def with_refusal(before: Sequence[R], refusal: R) -> tuple[R, ...]:
    """The refusals to report, newest first: the last one of each version of a run, at most 4.

    Args:
        before: Those up to now, newest first.
        refusal: A new one.
    """
    name = (refusal.version, refusal.run_id)
    others = (r for r in before if (r.version, r.run_id) != name)
    return (refusal, *others)[:REPORTED_AT_MOST]
