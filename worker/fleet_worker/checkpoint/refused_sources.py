"""Refused sources, which the worker need not read again.

A retry of a refused source gets the same answer without reading a byte, while its files do not change.
Otherwise every worker would read a bad checkpoint of 100 GB in full every few seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 300.0
_BASE_RETRY_SECONDS = 60.0
_REMEMBERED = 64

LASTING = frozenset(
    {
        Reason.CHECKPOINT_TRUNCATED,
        Reason.CHECKPOINT_MALFORMED,
        Reason.CHECKPOINT_AMBIGUOUS,
        Reason.CHECKPOINT_NOT_FINITE,
        Reason.CHECKPOINT_MISMATCH,
        Reason.DIGEST_MISMATCH,
        Reason.VERSION_REUSED,
    }
)
"""Reasons in the bytes of the files, which hold until the files change. A process remembers what its last
4096 versions were (`checkpoint.identity`), so other bytes stay refused under them."""


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

    @contextmanager
    def remembering(self, request: Hashable, files: frozenset[Hashable]) -> Iterator[None]:
        """Read a source in this block, unless the same files were refused before.

        Args:
            request: As in `check`.
            files: State of the files now. A refusal is not remembered without any.

        Errors:
            Refusal: the earlier refusal, or that of the block with the time until a retry.
        """
        self.check(request, files)
        try:
            yield
        except Refusal as refusal:
            if not files:
                raise
            raise self.note(request, files, refusal) from refusal

    def note(self, request: Hashable, files: Hashable, refusal: Refusal) -> Refusal:
        """Remember a refusal if its reason is in the files, and it does not say when to retry.

        Args:
            request: As in `check`.
            files: State of the files before they were read.
            refusal: The refusal.

        Returns:
            The refusal, with the time until a retry if it is remembered.
        """
        if refusal.reason not in LASTING or refusal.retry_after_seconds is not None:
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


@contextmanager
def retried_if(is_delta: bool) -> Iterator[None]:  # noqa: FBT001 - named by the function
    """Let what refuses a delta in this block say when to retry, so that it is not remembered.

    Its cause may be in the directory of a base, and that may be repaired.
    """
    try:
        yield
    except Refusal as refusal:
        if not is_delta or refusal.reason not in LASTING:
            raise
        raise Refusal(
            refusal.reason, refusal.message, retry_after_seconds=_BASE_RETRY_SECONDS
        ) from refusal
