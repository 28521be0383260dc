"""Horizontal bars, and lines over time, as SVG: pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
_MOST_TICKS = 7
_PLOT = 110
"""Height of a plot."""
_ROUNDING = 1 - 1e-9
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


def chart(rows: Sequence[Row], title: str, seconds: float | None = None) -> str:
    """The rows below each other, with an axis. `seconds`: as for `drawn`."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height(rows, seconds)}" role="img"><title>{escape(title)}</title>'
        f"{drawn(rows, seconds=seconds)}</svg>"
    )


def height(rows: Sequence[Row], seconds: float | None = None) -> int:
    """Of the rows, with the labels of a time axis."""
    return ROW * len(rows) + (0 if seconds is None else ROW)


def drawn(rows: Sequence[Row], top: int = 0, seconds: float | None = None) -> str:
    """The rows as parts of a picture.

    Args:
        rows: The bars.
        top: Of the first one.
        seconds: Length of the axis, which has ticks then; None for none.
    """
    bottom = top + ROW * len(rows)
    axis = f'<line x1="{_LABEL}" y1="{top}" x2="{_LABEL}" y2="{bottom}"/>'
    marks = "".join(_tick(at, seconds, top, bottom) for at in ticks(seconds)) if seconds else ""
    return marks + axis + "".join(_row(row, top + number * ROW) for number, row in enumerate(rows))


def ticks(seconds: float) -> Iterator[float]:
    """The moments of an axis from 0 on, at most eight: 1, 2 or 5 times a power of ten apart."""
    rough = seconds / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * _ROUNDING)
    for number in range(math.floor(seconds / step * (2 - _ROUNDING)) + 1):
        yield number * step


def _tick(at: float, seconds: float, top: int, bottom: int) -> str:
    x = _LABEL + at / seconds * _CHART
    line = f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom + 4}"/>'
    return line + _axis_text(x, bottom + 20, f"{at:g} s", "middle")


def _row(row: Row, top: int) -> str:
    parts = [f'<text x="0" y="{top + 20}">{escape(_short(row.label))}</text>']
    begin, end = float(_LABEL + _CHART), float(_LABEL)
    for bar in row.bars:
        left, length = _LABEL + bar.begin * _CHART, max(1.5, bar.length * _CHART)
        begin, end = min(begin, left), max(end, left + length)
        parts.append(
            f'<rect x="{left:.1f}" y="{top + 6}" width="{length:.1f}" height="18" rx="2" '
            f'style="fill: var(--{escape(bar.colour)})"/>'
        )
    at, style, width = end + 6, "", len(row.value) * _LETTER
    if at + width > WIDTH:
        # Behind the bars there is no room for a long value, so it is written into them, or before short ones.
        is_inside = end - begin > width or begin - width < _LABEL
        at, colour = (end - 6, "paper") if is_inside else (begin - 6, "ink")
        style = f' text-anchor="end" style="fill: var(--{colour})"'
    value = f'<text x="{at:.1f}" y="{top + 20}"{style}>{escape(row.value)}</text>'
    return "".join([*parts, value])


def _short(label: str) -> str:
    """The label, or its end: pods of one fleet differ in their last letters."""
    return label if len(label) <= _LETTERS else f"…{label[1 - _LETTERS :]}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: points of seconds before now, at most 0, and of values from 0 on."""

    colour: str
    points: tuple[tuple[float, float], ...]


def plot(lines: Sequence[Line], title: str, seconds: float) -> str:
    """Lines over the last seconds, with the highest value at the left. `seconds`: more than 0."""
    highest = max((value for line in lines for _, value in line.points), default=0.0)
    scale = highest or 1.0
    parts = []
    for at in ticks(seconds):
        x = _LABEL + _CHART - at / seconds * _CHART
        parts.append(f'<line x1="{x:.1f}" y1="8" x2="{x:.1f}" y2="{_PLOT + 4}"/>')
        text = "now" if at == 0 else f"-{at:g} s"
        parts.append(_axis_text(x, _PLOT + 20, text, "middle"))
    for y, value in ((8, highest), (_PLOT, 0.0)):
        parts.append(_axis_text(_LABEL - 8, y + 4, f"{value:.0f}", "end"))
    for line in lines:
        points = " ".join(
            f"{_LABEL + _CHART + at / seconds * _CHART:.1f},{_PLOT - value / scale * (_PLOT - 8):.1f}"
            for at, value in line.points
        )
        style = f"fill: none; stroke: var(--{escape(line.colour)}); stroke-width: 2"
        parts.append(f'<polyline points="{points}" style="{style}"/>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {_PLOT + ROW}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _axis_text(x: float, y: float, text: str, anchor: str) -> str:
    style = f'text-anchor="{anchor}" style="fill: var(--dim)"'
    return f'<text x="{x:.1f}" y="{y:g}" {style}>{text}</text>'
