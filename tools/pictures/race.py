"""The moving picture of the front page, drawn from the recording of `make race`.

Left the hand-written loop, right rlfleet. Both sides run as fast as they were recorded, times the same
factor. Lengths are pixels of the viewBox; no text is smaller than a phone shows legibly.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pictures.shapes import Theme

RECORDING = Path(__file__).parents[2] / "bench/results/race.json"
SECONDS = 12.0
_WIDTH, _HEIGHT, _PANEL, _GAP = 720, 372, 345, 10
_TILE, _TILE_GAP = 100, 12
_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_TITLES = {"loop": "A hand-written loop", "rlfleet": "rlfleet"}


class _Colours(NamedTuple):
    """Of the tiles: at the trainer's version, at an older one, with a wrong label, away."""

    newest: str
    older: str
    wrong: str
    away: str


_COLOURS = {
    "light": _Colours("#1f883d", "#3f6fd1", "#cf222e", "#8c959f"),
    "dark": _Colours("#2ea043", "#4c7be0", "#e5534b", "#484f58"),
}


class _Frames:
    """Collects groups of which each is shown for a part of the picture's time."""

    def __init__(self, total: float) -> None:
        self._total = total
        self.styles: list[str] = []
        self.parts: list[str] = []

    def add(self, begin: float, end: float, content: str) -> None:
        """Show `content` from `begin` to `end`, in seconds of the recording."""
        first, last = (round(100 * t / self._total, 2) for t in (begin, min(end, self._total)))
        if last <= first:
            return
        name = f"f{len(self.parts)}"
        hidden = "" if first == 0 else "0%{opacity:0}"
        gone = "" if last >= 100 else f"{last}%{{opacity:0}}"
        kept = " kept" if last >= 100 else ""
        self.styles.append(f"@keyframes {name}{{{hidden}{first}%{{opacity:1}}{gone}}}")
        self.styles.append(f".{name}{{animation-name:{name}}}")
        self.parts.append(f'<g class="f {name}{kept}">{content}</g>')

    def steps(self, changes: Sequence[tuple[float, str]]) -> None:
        """Show each content until the next one begins."""
        ends = [begin for begin, _ in changes[1:]] + [self._total]
        for (begin, content), end in zip(changes, ends, strict=True):
            self.add(begin, end, content)


def describe(recording: dict[str, Any]) -> str:
    """The picture in a sentence, with the numbers that it ends with."""
    texts = []
    for name, title in _TITLES.items():
        tokens, wrong = _tokens(recording[name])
        texts.append(f"{title}: {wrong:,} of {tokens:,} tokens with a wrong label")
    return (
        "The same story twice: a trainer publishes versions to three workers, and one engine is killed. "
        + "; ".join(texts)
        + "."
    )


def draw(theme: Theme) -> str:
    """The picture as SVG with CSS animations, without motion where the reader prefers it."""
    recording = json.loads(RECORDING.read_text())
    total = max(recording[name]["seconds"] for name in _TITLES)
    frames = _Frames(total)
    still = "".join(
        _side(frames, recording[name], number * (_PANEL + _GAP) + _GAP, title, theme)
        for number, (name, title) in enumerate(_TITLES.items())
    )
    speed = _text(
        _WIDTH / 2,
        _HEIGHT - 12,
        f"recorded on real workers, {total / SECONDS:.0f} times the speed",
        18,
        theme.quiet,
    )
    style = (
        f"text{{font-family:{_FONT}}}.f{{animation:{SECONDS:.0f}s step-end infinite}}"
        "@media (prefers-reduced-motion:reduce){.f{animation:none;opacity:0}.kept{opacity:1}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f"<title>{escape(describe(recording))}</title>",
            f"<style>{style}{''.join(frames.styles)}</style>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="10" fill="{theme.page}"/>',
            still,
            speed,
            *frames.parts,
            "</svg>\n",
        ]
    )


def _side(frames: _Frames, side: dict[str, Any], left: float, title: str, theme: Theme) -> str:
    colours, middle = _COLOURS[theme.name], left + _PANEL / 2
    fill, border = theme.boxes["group"]
    frames.steps(
        [
            (t, _text(middle, 78, f"trainer: version {version}", 22, theme.text))
            for t, version in side["published"]
        ]
    )
    for number, changes in enumerate(side["workers"].values()):
        x = left + (_PANEL - 3 * _TILE - 2 * _TILE_GAP) / 2 + number * (_TILE + _TILE_GAP)
        frames.steps([(t, _tile(x, *look)) for t, look in _looks(side, changes, colours)])
    ours = _tokens(side)[1] == 0
    frames.steps(
        [
            (
                t,
                _text(
                    middle,
                    262,
                    f"{wrong:,}",
                    44,
                    colours.newest if not wrong else colours.wrong,
                    bold=True,
                ),
            )
            for t, wrong in _counted(side)
        ]
    )
    box = (
        f'<rect x="{left}" y="10" width="{_PANEL}" height="{_HEIGHT - 46}" rx="8" fill="{fill}" '
        f'stroke="{theme.boxes["ours"][1] if ours else border}" stroke-width="1.5"/>'
    )
    return (
        box
        + _text(middle, 44, title, 26, theme.text, bold=True)
        + _text(middle, 296, "tokens with a wrong label", 22, theme.text)
    )


def _looks(
    side: dict[str, Any], changes: Sequence[tuple[float, str]], colours: _Colours
) -> Iterator[tuple[float, tuple[str, str]]]:
    """When a worker's tile changes: (time, (text, colour))."""
    labels = side["labels"]  # what clients call the weights of every worker; none by rlfleet
    times = sorted({0.0, *(t for t, _ in changes), *(t for t, _ in [*labels, *side["published"]])})
    for t in times:
        version, newest = _at(changes, t), _at(side["published"], t)
        label = _at(labels, t) if labels else version
        name = f"v{version}" if version.isdigit() else version
        if not version:
            yield t, ("killed", colours.away)
        elif version != label:
            yield t, (name, colours.wrong)
        else:
            yield t, (name, colours.newest if version == newest else colours.older)


def _at(changes: Sequence[tuple[float, str]], time: float) -> str:
    position = bisect_right([t for t, _ in changes], time)
    return changes[max(0, position - 1)][1]


def _counted(side: dict[str, Any]) -> list[tuple[float, int]]:
    """(time, tokens with a wrong label until then), a few steps a second of the picture."""
    found, wrong = [(0.0, 0)], 0
    for t, _, _, more in sorted(side["replies"]):
        wrong += more
        if more:
            found.append((t, wrong))
    # Steps closer than that look like one.
    return [
        a for a, b in pairwise([*found, (float("inf"), 0)]) if b[0] - a[0] > 0.5 or a == found[0]
    ]


def _tokens(side: dict[str, Any]) -> tuple[int, int]:
    """All tokens, and those with a wrong label."""
    return sum(r[2] for r in side["replies"]), sum(r[3] for r in side["replies"])


def _tile(x: float, text: str, colour: str) -> str:
    box = f'<rect x="{x}" y="102" width="{_TILE}" height="{_TILE}" rx="10" fill="{colour}"/>'
    size = 40 if len(text) < 5 else 26
    return box + _text(x + _TILE / 2, 164, text, size, "#ffffff", bold=True)


def _text(x: float, y: float, text: str, size: int, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="{size}"{weight} '
        f'fill="{colour}">{escape(text)}</text>'
    )
