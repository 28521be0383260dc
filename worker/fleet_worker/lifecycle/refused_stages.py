"""The refusals of stages: which of them the worker reports, and which sources it need not read again.

The operator chooses between sources by the reported refusals. If it saw only the last one, it would try
a refused source again after trying another one.

A retry of a refused source gets the same answer without reading a byte, while its files do not change.
Otherwise every worker would read a bad checkpoint of 100 GB in full every few seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

REPORTED_AT_MOST = 4


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
    """Return the refusals to report, newest first: the last one of each version of a run, at most 4.

    Args:
        before: The refusals until now, newest first.
        refusal: The new refusal.
    """
    name = (refusal.version, refusal.run_id)
    others = (r for r in before if (r.version, r.run_id) != name)
    return (refusal, *others)[:REPORTED_AT_MOST]


FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 300.0
_REMEMBERED = 64

LASTING = frozenset(
    {
        Reason.CHECKPOINT_TRUNCATED,
        Reason.CHECKPOINT_MALFORMED,
        Reason.CHECKPOINT_NOT_FINITE,
        Reason.CHECKPOINT_MISMATCH,
        Reason.DIGEST_MISMATCH,
        Reason.VERSION_REUSED,
    }
)
"""Reasons in the bytes of the files, which hold until the files change. A process never forgets what a
version was, so other bytes stay refused under it."""


@dataclass(frozen=True, slots=True)
class _Known:
    files: Hashable
    refusal: Refusal
    times: int


class RefusedSources:
    """The last refused sources."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()

    def check(self, request: Hashable, files: Hashable) -> None:
        """Refuse a source again if its files have not changed. The time until a retry doubles.

        Args:
            request: The source, its version and run, and all that was required of it.
            files: State of its files now.

        Errors:
            Refusal: the earlier refusal.
        """
        known = self._known.get(request)
        if known is not None and known.files == files:
            raise self._remember(request, _Known(files, known.refusal, known.times + 1))

    def note(self, request: Hashable, files: Hashable, refusal: Refusal) -> Refusal:
        """Remember a refusal if its reason is in the files.

        Args:
            request: As in `check`.
            files: State of the files before they were read.
            refusal: The refusal.

        Returns:
            The refusal, with the time until a retry if it is remembered.
        """
        if refusal.reason not in LASTING:
            return refusal
        return self._remember(request, _Known(files, refusal, 0))

    def _remember(self, request: Hashable, known: _Known) -> Refusal:
        self._known[request] = known
        self._known.move_to_end(request)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        doubled = FIRST_RETRY_SECONDS * 2 ** min(known.times, 10)
        return Refusal(
            known.refusal.reason,
            known.refusal.message,
            retry_after_seconds=min(doubled, LONGEST_RETRY_SECONDS),
        )
