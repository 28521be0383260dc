"""The labels of recorded tokens against the versions that a fleet has pinned: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlfleet.cli.checks import Check, Result
from rlfleet.sampling import WeightSpan
from rlfleet.words import plural
from rlfleet_resources.fleet_status import PinnedWeights
from rlfleet_resources.weight_files import DIGEST_PREFIX


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as a span names them. `digest`: its beginning, in hex; None without one."""

    run_id: str | None
    version: str
    digest: str | None

    adapter: str | None = None
    """The version of the LoRA adapter over these base weights."""

    @property
    def words(self) -> str:
        """The name that the worker's audit gives them."""
        run = "" if self.run_id is None else f"{self.run_id}/"
        adapter = "" if self.adapter is None else f" with adapter version {self.adapter}"
        return f"{run}{self.version}{'' if self.digest is None else f'@{self.digest}'}{adapter}"


def tokens_of(spans: Iterable[WeightSpan]) -> dict[Weights, int]:
    """The number of tokens under each label."""
    found: dict[Weights, int] = {}
    for span in spans:
        weights = Weights(span.run_id, span.version, span.digest, span.adapter)
        found[weights] = found.get(weights, 0) + span.end - span.start
    return found


def label_checks(tokens: dict[Weights, int], pinned: Sequence[PinnedWeights]) -> Iterator[Check]:
    """One check for each label.

    Args:
        tokens: Of `tokens_of`.
        pinned: Of the fleet's status: the digest of each version of a run since it was first seen.
            Where a trainer drives the fleet, one of each directory.
    """
    digests: dict[tuple[str | None, str], list[str]] = {}
    for pin in pinned:
        digests.setdefault((pin.run_id, pin.version), []).append(pin.digest)
    for weights, number in sorted(tokens.items(), key=lambda item: item[0].words):
        subject = f"{weights.words} ({plural(number, 'token')})"
        found = digests.get((weights.run_id, weights.version), [])
        known = " and ".join(found)
        if not found and weights.digest is None:
            message = (
                "the weights came over a collective: they have no digest that could be compared"
            )
            remedy = "name them by run and version; no two process groups have the same run"
            yield Check(subject=subject, result=Result.WARN, message=message, remedy=remedy)
        elif not found:
            message = "the fleet has no record of this version; it keeps the last 100"
            yield Check(subject=subject, result=Result.WARN, message=message, remedy=_LOOK)
        elif weights.digest is None:
            message = f"the label has no digest; the fleet has pinned {known}"
            yield Check(subject=subject, result=Result.WARN, message=message, remedy=_LOOK)
        elif not any(d.removeprefix(DIGEST_PREFIX).startswith(weights.digest) for d in found):
            yield Check(
                subject=subject,
                result=Result.FAIL,
                message=f"the fleet has pinned other bytes for this version: {known}",
                remedy="do not train on these tokens: they are of another fleet, or their labels are wrong",
            )
        elif weights.adapter is not None:
            message = f"the fleet has pinned {known}; labels of adapters do not name the adapter, and are not compared"
            yield Check(subject=subject, result=Result.WARN, message=message, remedy=_LOOK)
        else:
            yield Check(subject=subject, result=Result.OK, message=f"the fleet has pinned {known}")


_LOOK = "compare the tokens with the checkpoint itself: python -m fleet_worker audit"
