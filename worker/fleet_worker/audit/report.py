"""The audit's table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fleet_worker.audit.judge import Tally

_COLUMNS = ("version", "replies", "tokens", "agreeing", "telling", "worst", "mean", "next best")
_EXAMPLES = 5


def table(tallies: Mapping[str, Tally], order: Sequence[str]) -> Iterator[str]:
    """The lines of a table with one row a version, in the order of the run, and the verdict."""
    rows = [_COLUMNS, *(_row(version, tallies[version]) for version in order if version in tallies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *rest]) if first else ""
    wrong = [line for tally in tallies.values() for line in tally.wrong]
    yield ""
    if not wrong:
        yield f"every one of {sum(t.tokens for t in tallies.values())} tokens fits its label"
        return
    yield f"{len(wrong)} tokens do not fit their label:"
    yield from (f"  {line}" for line in wrong[:_EXAMPLES])
    if len(wrong) > _EXAMPLES:
        yield f"  and {len(wrong) - _EXAMPLES} more"


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
