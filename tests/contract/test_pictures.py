"""The diagrams name files that exist, and every place that shows one has both of its versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pictures.way_of_a_rollout import LANES

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
DIAGRAMS = sorted(IMAGES.glob("*-light.svg"))


def test_the_way_of_a_rollout_names_files_that_exist() -> None:
    named = [ROOT / lane.folder / step.file for lane in LANES for step in lane.steps]

    assert [file for file in named if not file.is_file()] == []


@pytest.mark.parametrize("light", DIAGRAMS, ids=lambda file: file.stem)
def test_both_versions_say_the_same(light: Path) -> None:
    dark = light.with_name(light.name.replace("-light", "-dark"))

    assert texts_of(light) == texts_of(dark) != []


def texts_of(file: Path) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]+)</text>", file.read_text())


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_page_of_the_forge_has_a_version_for_each_of_its_themes(page: str) -> None:
    shown = re.findall(r'(?:src|srcset)="([^"]+)-(light|dark)\.svg"', (ROOT / page).read_text())

    assert {theme for _, theme in shown} == {"light", "dark"}
    assert len({name for name, _ in shown}) == 1
    for name, theme in shown:
        assert (ROOT / f"{name}-{theme}.svg").is_file()


@pytest.mark.parametrize("file", DIAGRAMS, ids=lambda file: file.stem)
def test_no_text_leaves_its_picture(file: Path) -> None:
    """A letter of these fonts is 8 pixels wide at most, in the mean of a line."""
    svg = file.read_text()
    (width,) = re.findall(r'<svg [^>]*viewBox="0 0 (\d+) ', svg)
    found = re.findall(r'<text x="([\d.]+)"[^>]* text-anchor="(\w+)"[^>]*>([^<]+)<', svg)

    assert found
    for x, anchor, text in found:
        start = float(x) - len(text) * {"start": 0, "middle": 4, "end": 8}[anchor]
        assert start > 0, text
        assert start + 8 * len(text) < int(width), text
