"""The verdict: recorded against recomputed log-probabilities, token by token, and its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_worker.audit.records import Record

Recomputed = Mapping[str, Sequence[float]]
"""Version → log-probability of every sampled token of a record under it."""


@dataclass(slots=True)
class Tally:
    """Result for the tokens of one version.

    Fields:
        agreeing: number of tokens whose two log-probabilities are within the tolerance.
        telling: number of agreeing tokens that do not agree under the versions next to it. Only
            these prove the label.
        worst: largest distance in nats.
        other_total: sum of the distances under the neighbouring version that fits best.
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
        """Mean distance under the neighbouring version that fits best. None without neighbours."""
        return self.other_total / self.other_tokens if self.other_tokens else None


def judge(
    record: Record,
    recomputed: Recomputed,
    neighbours: Mapping[str, Sequence[str]],
    tallies: dict[str, Tally],
    *,
    tolerance: float,
) -> None:
    """Add the judged spans of a record to the tallies of their versions.

    Args:
        record: One choice.
        recomputed: Log-probabilities under every version that it names, and those next to them.
        neighbours: Version → versions next to it.
        tallies: Version → tally. The function adds to them.
        tolerance: Largest distance that counts as rounding, in nats.
    """
    for span in record.judged:
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


_COLUMNS = ("version", "replies", "tokens", "agreeing", "telling", "worst", "mean", "next best")
_EXAMPLES = 5


def table(
    tallies: Mapping[str, Tally], order: Sequence[str], *, unjudged: int = 0
) -> Iterator[str]:
    """Yield the lines of a table with one row per version in the order of the run, and the result.

    `unjudged`: number of tokens whose spans have `kv_from`.
    """
    rows = [_COLUMNS, *(_row(version, tallies[version]) for version in order if version in tallies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *rest]) if first else ""
    wrong = [line for tally in tallies.values() for line in tally.wrong]
    yield ""
    if unjudged:
        yield (
            f"not judged: {_tokens(unjudged)} that may have read keys and values of older weights "
            "(kv_from)"
        )
    if not wrong:
        kind = " other" if unjudged else ""
        yield f"all {_tokens(sum(t.tokens for t in tallies.values()), kind)} fit their labels"
        return
    yield f"wrong labels: {_tokens(len(wrong))}"
    yield from (f"  {line}" for line in wrong[:_EXAMPLES])
    if len(wrong) > _EXAMPLES:
        yield f"  and {len(wrong) - _EXAMPLES} more"


def _tokens(count: int, kind: str = "") -> str:
    return f"1{kind} token" if count == 1 else f"{count}{kind} tokens"


def _row(version: str, tally: Tally) -> tuple[str, ...]:
    other = tally.other_mean
    return (
        version,
        str(tally.replies),
        str(tally.tokens),
        str(tally.agreeing),
        str(tally.telling),
        f"{tally.worst:.3f}",
        f"{tally.mean:.4f}",
        "-" if other is None else f"{other:.3f}",
    )
