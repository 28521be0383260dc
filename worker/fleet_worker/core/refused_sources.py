"""Refusals of sources, remembered with what their files looked like.

Whoever asks again about files that did not change gets the same answer, without a byte being read:
a bad checkpoint of 100 GB would else be read in full every few seconds, by every worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

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
    }
)
"""Reasons that lie in the bytes of the files: they stay true until the files change."""


@dataclass(frozen=True, slots=True)
class _Known:
    files: Hashable
    refusal: Refusal
    times: int


class RefusedSources:
    """What was refused lately, by what was asked for."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()

    def check(self, asked: Hashable, files: Hashable) -> None:
        """Refuse again what was refused before; with each time it is to be asked again later.

        Args:
            asked: The source, and what was asked of it.
            files: What its files look like now.

        Errors:
            Refusal: the earlier one, if the files are as they were.
        """
        known = self._known.get(asked)
        if known is not None and known.files == files:
            raise self._again(asked, _Known(files, known.refusal, known.times + 1))

    def note(self, asked: Hashable, files: Hashable, refusal: Refusal) -> Refusal:
        """Remember a refusal, if it lies in the files; the same with the time until a retry.

        Args:
            asked: As in `check`.
            files: What the files looked like before they were read.
            refusal: Why they were not taken.
        """
        if refusal.reason not in LASTING:
            return refusal
        return self._again(asked, _Known(files, refusal, 0))

    def _again(self, asked: Hashable, known: _Known) -> Refusal:
        self._known[asked] = known
        self._known.move_to_end(asked)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        doubled = FIRST_RETRY_SECONDS * 2 ** min(known.times, 10)
        return Refusal(
            known.refusal.reason,
            known.refusal.message,
            retry_after_seconds=min(doubled, LONGEST_RETRY_SECONDS),
        )
