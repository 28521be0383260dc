"""The recordings of the command line's tests are situations that the runtime writes today.

`RLFLEET_GOLDEN=write` writes them again, and then the golden texts of tests/unit/client/cli.
"""

from __future__ import annotations

import pytest
from tests.support.cli import RECORDED, SITUATIONS, golden
from tests.support.situations import STORIES, play


@pytest.mark.parametrize("name", STORIES)
def test_a_recording_is_what_the_simulator_gives(name: str) -> None:
    golden(play(name).text(), f"{name}.yaml", RECORDED)


def test_every_recording_has_its_story() -> None:
    assert sorted(STORIES) == SITUATIONS
