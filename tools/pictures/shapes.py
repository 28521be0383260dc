"""Boxes, arrows and texts of a diagram, as SVG. All lengths are pixels of the viewBox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Role = Literal["plain", "ours", "outside", "group"]
Point = tuple[float, float]

_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"
_LINE_HEIGHT = 17
_HEADS = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse">'
    '<path d="M0 0L10 5L0 10z" fill="{colour}"/></marker></defs>'
)
"""The heads of all arrows of a drawing."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one version of a diagram.

    Fields:
        boxes: for each role the colours of the fill and of the border.
    """

    name: str
    page: str
    text: str
    quiet: str
    arrow: str
    boxes: dict[Role, tuple[str, str]]


LIGHT = Theme(
    name="light",
    page="#ffffff",
    text="#1f2328",
    quiet="#59636e",
    arrow="#4a5560",
    boxes={
        "plain": ("#f6f8fa", "#b7bfc8"),
        "ours": ("#e3edff", "#3f6fd1"),
        "outside": ("#ffffff", "#b7bfc8"),
        "group": ("#fbfcfd", "#cfd6de"),
    },
)
DARK = Theme(
    name="dark",
    page="#0d1117",
    text="#e6edf3",
    quiet="#9aa5b1",
    arrow="#aab4bf",
    boxes={
        "plain": ("#1b222c", "#4b5662"),
        "ours": ("#16294d", "#6d9bf5"),
        "outside": ("#0d1117", "#4b5662"),
        "group": ("#121821", "#3a444f"),
    },
)


class Drawing:
    """A diagram that is being drawn."""

    def __init__(self, width: int, height: int, theme: Theme, description: str) -> None:
        self._theme = theme
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(description)}</title>",
            _HEADS.format(colour=theme.arrow),
            f'<rect width="{width}" height="{height}" rx="10" fill="{theme.page}"/>',
        ]

    def box(
        self,
        corner: Point,
        size: Point,
        title: str,
        lines: Sequence[str] = (),
        *,
        role: Role = "plain",
        at_top: bool = False,
    ) -> None:
        """Draws a box with a bold title and quiet lines in its middle, or at its upper edge."""
        (x, y), (width, height) = corner, size
        fill, border = self._theme.boxes[role]
        dashes = ' stroke-dasharray="5 4"' if role == "outside" else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
            f'stroke="{border}" stroke-width="1.5"{dashes}/>'
        )
        used = _LINE_HEIGHT * (1 + len(lines))
        first = y + (22 if at_top else (height - used) / 2 + 13)
        self.text((x + width / 2, first), title, bold=True)
        for number, line in enumerate(lines, 1):
            self.text((x + width / 2, first + number * _LINE_HEIGHT), line, quiet=True)

    def text(
        self,
        at: Point,
        text: str,
        *,
        bold: bool = False,
        quiet: bool = False,
        mono: bool = False,
        anchor: Literal["start", "middle", "end"] = "middle",
    ) -> None:
        """Draws one line of text on its baseline."""
        size = 14 if bold else 12.5
        colour = self._theme.quiet if quiet else self._theme.text
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" font-size="{size}"{weight} '
            f'font-family="{_MONO if mono else _FONT}" fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, *points: Point, both: bool = False, dashed: bool = False) -> None:
        """Draws a line through the points with a head at its end, or at both ends."""
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self._theme.arrow}" '
            f'stroke-width="1.6"{dashes}{start} marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        """Returns the finished file."""
        return "\n".join([*self._parts, "</svg>\n"])
