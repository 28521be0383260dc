"""The verdict: recorded against recomputed log-probabilities, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_worker.audit.records import Record

Recomputed = Mapping[str, Sequence[float]]
"""Version → log-probability of every sampled token of a record under it."""


@dataclass(slots=True)
class Tally:
    """What is known of one version's tokens.

    Fields:
        agreeing: tokens whose two log-probabilities are within the tolerance.
        telling: of these, those that the versions next to it would have given another number: only
            they prove anything.
        worst: largest distance, in nats.
        other_total: sum of the distances under the best of the neighbouring versions.
    """

    replies: int = 0
    tokens: int = 0
    agreeing: int = 0
    telling: int = 0
    worst: float = 0.0
    total: float = 0.0
    other_tokens: int = 0
    other_total: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean distance under the named version."""
        return self.total / self.tokens if self.tokens else 0.0

    @property
    def other_mean(self) -> float | None:
        """Mean distance under the neighbouring version that fits best, None without neighbours."""
        return self.other_total / self.other_tokens if self.other_tokens else None


def judge(
    record: Record,
    recomputed: Recomputed,
    neighbours: Mapping[str, Sequence[str]],
    tallies: dict[str, Tally],
    *,
    tolerance: float,
) -> None:
    """Add a record to the tallies of the versions it names.

    Args:
        record: One choice.
        recomputed: Under every version that it names, and those next to them.
        neighbours: Version → versions next to it.
        tallies: Version → tally; added to.
        tolerance: Largest distance that is rounding, in nats.
    """
    for span in record.weight_versions:
        tally = tallies.setdefault(span.weights, Tally())
        tally.replies += 1
        for i in range(span.start, span.end):
            recorded = record.logprobs[i]
            distance = abs(recorded - recomputed[span.weights][i])
            others = [abs(recorded - recomputed[v][i]) for v in neighbours[span.weights]]
            tally.tokens += 1
            tally.total += distance
            tally.worst = max(tally.worst, distance)
            if others:
                tally.other_tokens += 1
                tally.other_total += min(others)
            if distance <= tolerance:
                tally.agreeing += 1
                tally.telling += bool(others) and min(others) > tolerance
            else:
                tally.wrong.append(_described(record, span.weights, i, distance, recomputed))


def _described(
    record: Record, version: str, position: int, distance: float, recomputed: Recomputed
) -> str:
    recorded = record.logprobs[position]
    fits = min(recomputed, key=lambda v: abs(recorded - recomputed[v][position]))
    hint = f"; {fits} fits best" if fits != version else ""
    name = f"reply {record.id}: " if record.id else ""
    return f"{name}token {position} is off by {distance:.3f} under {version}{hint}"
