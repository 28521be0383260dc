"""Two charts as SVG, without a library: time against size, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 40, 50
_COLORS = ("#0b6e4f", "#c1440e", "#5b5f97", "#b8860b")
_FONT = 'font-family="sans-serif" font-size="13"'

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps logarithms of values to places. Fields: low, high: powers of ten at both ends."""

    low: int
    high: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> Scale:
        """The whole powers of ten around these values, all above 0."""
        low = math.floor(math.log10(min(values)))
        high = math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), begin, end)

    def at(self, value: float) -> float:
        """The place of a value."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def time_against_size(lines: Mapping[str, Points], title: str) -> str:
    """Lines over logarithmic axes. `lines`: name → (workers, seconds)."""
    places = [point for points in lines.values() for point in points]
    across = Scale.over([x for x, _ in places], _LEFT, WIDTH - _RIGHT)
    up = Scale.over([y for _, y in places], HEIGHT - _BOTTOM, _TOP)
    drawn = [_text(_LEFT, 22, title, weight="bold")]
    for value in across.ticks:
        drawn += [_line(across.at(value), _TOP, across.at(value), HEIGHT - _BOTTOM, "#e4e4e4")]
        drawn += [_text(across.at(value), HEIGHT - _BOTTOM + 20, f"{value:,.0f}", anchor="middle")]
    for value in up.ticks:
        drawn += [_line(_LEFT, up.at(value), WIDTH - _RIGHT, up.at(value), "#e4e4e4")]
        drawn += [_text(_LEFT - 8, up.at(value) + 4, f"{value:g} s", anchor="end")]
    drawn += [_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 10, "workers", anchor="middle")]
    ends = _apart([up.at(points[-1][1]) for points in lines.values() if points])
    named = ((name, points) for name, points in lines.items() if points)
    for (name, points), color, end in zip(named, _COLORS, ends, strict=False):
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
        drawn += [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>']
        drawn += [
            f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3.5" fill="{color}"/>'
            for x, y in points
        ]
        drawn += [_text(across.at(points[-1][0]) + 10, end + 4, name, color=color)]
    return _picture(drawn, HEIGHT)


def where_time_goes(
    bars: Mapping[str, Mapping[str, float]],
    title: str,
    *,
    names: int = _LEFT,
    is_to_scale: bool = False,
) -> str:
    """A bar for each size, in the shares of its parts.

    Args:
        bars: Name → part → seconds. All bars have the same parts.
        title: Above them.
        names: Width of the names, in pixels.
        is_to_scale: Bars are as long as their times. Else all have the same length.
    """
    parts = list(next(iter(bars.values())))
    colors = {part: _color_of(number) for number, part in enumerate(parts)}
    height = 100 + 34 * len(bars) + 22 * math.ceil(len(parts) / 4)
    drawn = [_text(_LEFT, 22, title, weight="bold")]
    width = WIDTH - names - 110
    longest = max(sum(shares.values()) for shares in bars.values())
    for row, (name, shares) in enumerate(bars.items()):
        top, left = 40 + 34 * row, float(names)
        whole = sum(shares.values()) or 1.0
        drawn += [_text(names - 8, top + 17, name, anchor="end")]
        for part, seconds in shares.items():
            wide = width * seconds / (longest if is_to_scale else whole)
            place = f'x="{left:.1f}" y="{top}" width="{wide:.1f}" height="24"'
            title_of_part = f"<title>{escape(part)}: {seconds:.3f} s</title>"
            drawn += [f'<rect {place} fill="{colors[part]}">{title_of_part}</rect>']
            left += wide
        drawn += [_text(left + 8, top + 17, f"{whole:.3f} s")]
    for number, part in enumerate(parts):
        left, top = _LEFT + 165 * (number % 4), 62 + 34 * len(bars) + 22 * (number // 4)
        drawn += [f'<rect x="{left}" y="{top}" width="14" height="14" fill="{colors[part]}"/>']
        drawn += [_text(left + 20, top + 12, part)]
    return _picture(drawn, height)


def _color_of(number: int) -> str:
    """Waiting and calls in turn: a pale and a full shade of each color."""
    pale = ("#a9d3c4", "#edc2ae", "#cbccde", "#e8d9b0")
    shades = pale if number % 2 == 0 else _COLORS
    return shades[number // 2 % len(shades)]


def _apart(places: Sequence[float], least: float = 16) -> list[float]:
    """The positions, moved apart until their labels do not overlap."""
    order = sorted(range(len(places)), key=lambda n: places[n])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + least)
    return moved


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal",
    color: str = "#222222",
) -> str:  # fmt: skip
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} {_FONT} font-weight="{weight}" fill="{color}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{color}"/>'


def _picture(drawn: Sequence[str], height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, *drawn, "</svg>"]) + "\n"
