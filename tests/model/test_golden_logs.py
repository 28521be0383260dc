"""Named stories keep the promises, and some go as before, line by line. `--update-golden` writes the logs again:
read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.model.chronicle import text_of
from tests.model.stories import RECORDED, STORIES

GOLDEN = Path(__file__).parent / "golden"


def title_of(story) -> str:
    return story.__name__.replace("_", " ")


def file_of(story) -> Path:
    return GOLDEN / f"{story.__name__.replace('_', '-')}.txt"


@pytest.mark.parametrize("story", RECORDED, ids=title_of)
def test_a_story_goes_as_its_golden_log_says(story, request):
    text = text_of(story)
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        file_of(story).write_text(text)

    assert text == file_of(story).read_text()


@pytest.mark.parametrize("story", [s for s in STORIES if s not in RECORDED], ids=title_of)
def test_a_story_keeps_the_promises(story):
    story()


def test_every_log_belongs_to_a_story():
    assert {f.name for f in GOLDEN.iterdir()} == {file_of(story).name for story in RECORDED}
