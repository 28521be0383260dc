"""The screen of the demo is that of `rlfleet watch`, with the workers' own pages below."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from tests.support.cli import CLI, Recorded

from demo.place import FLEET, WEIGHTS
from demo.screen import Screen
from demo.watch import Snapshot, WorkerState, view_of


@pytest.mark.parametrize("situation", ["applied", "paused", "stalled"])
def test_the_screen_has_the_lines_of_watch(tmp_path: Path, situation: str) -> None:
    objects, screen = Recorded(situation), Screen()
    assert objects.fleet is not None
    assert objects.weights is not None
    objects.fleet["metadata"]["name"] = objects.weights["spec"]["fleetRef"]["name"] = FLEET
    objects.weights["metadata"]["name"] = WEIGHTS
    view = view_of([objects.fleet, objects.weights], objects.moment)
    screen.snapshot = Snapshot(view=view, workers={"policy-0": WorkerState(phase="serving")})

    screen.save(tmp_path / "demo.svg", ["the verdict"])

    shown = re.sub(r"<[^>]+>", "\n", (tmp_path / "demo.svg").read_text())
    text = " ".join(unescape(shown).split())
    lines = (CLI / "golden" / f"screen.{situation}.txt").read_text().splitlines()
    phase = next(line for line in lines if " for " in line)
    assert " ".join(phase.split()) in text
    assert lines[1].strip() in text
    assert "policy-0 serving" in text


def test_nothing_is_drawn_before_the_objects_exist() -> None:
    assert view_of([], Recorded("applied").moment) is None
