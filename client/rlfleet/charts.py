"""Horizontal bars as SVG: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --line: #d9d9e0; --paper: #fff;
  --staging: #0b68cb; --pausing: #a35200; --loading: #8145b5; --resuming: #18794e;
  --applied: #18794e; --halted: #ce2c31; --refused: #ce2c31; --superseded: #8b8d98; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #b0b4ba; --line: #43484e;
  --paper: #18191b; --staging: #70b8ff; --pausing: #ffa057; --loading: #d19dff;
  --resuming: #3dd68c; --applied: #3dd68c; --halted: #ff9592; --refused: #ff9592; --superseded: #797b86; } }
svg text { fill: var(--ink); font-size: 13px; } svg line { stroke: var(--line); }
"""
"""Colours of a page or of a picture, light and dark, and the words that bars name them by."""
WIDTH, ROW = 720, 30
_LABEL, _CHART = 110, 520
_LETTERS = 15
_LETTER = 7.5
"""Width of a letter, at most on average."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its beginning and length as shares of the width, and the word of its colour."""

    begin: float
    length: float
    colour: str


@dataclass(frozen=True, slots=True)
class Row:
    """Bars in one line, with a label before them and a value behind."""

    label: str
    bars: tuple[Bar, ...]
    value: str


def chart(rows: Sequence[Row], title: str) -> str:
    """The rows below each other, with an axis."""
    height = ROW * len(rows)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"{drawn(rows)}</svg>"
    )


def drawn(rows: Sequence[Row], top: int = 0) -> str:
    """The rows as parts of a picture. `top`: of the first one."""
    axis = f'<line x1="{_LABEL}" y1="{top}" x2="{_LABEL}" y2="{top + ROW * len(rows)}"/>'
    return axis + "".join(_row(row, top + number * ROW) for number, row in enumerate(rows))


def _row(row: Row, top: int) -> str:
    parts = [f'<text x="0" y="{top + 20}">{escape(_short(row.label))}</text>']
    end = float(_LABEL)
    for bar in row.bars:
        left, length = _LABEL + bar.begin * _CHART, max(1.5, bar.length * _CHART)
        end = max(end, left + length)
        parts.append(
            f'<rect x="{left:.1f}" y="{top + 6}" width="{length:.1f}" height="18" rx="2" '
            f'style="fill: var(--{escape(bar.colour)})"/>'
        )
    at, inside = end + 6, ""
    if at + len(row.value) * _LETTER > WIDTH:
        # Behind a long bar there is no room for a long value, so it is written into the bar.
        at, inside = end - 6, ' text-anchor="end" style="fill: var(--paper)"'
    value = f'<text x="{at:.1f}" y="{top + 20}"{inside}>{escape(row.value)}</text>'
    return "".join([*parts, value])


def _short(label: str) -> str:
    """The label, or its end: pods of one fleet differ in their last letters."""
    return label if len(label) <= _LETTERS else f"…{label[1 - _LETTERS :]}"
