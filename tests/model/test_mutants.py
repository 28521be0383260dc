"""The harness bites: for every promise, one-line mistakes in the planner that it catches.

Each mistake is made in a process of its own (`mutate`). It plays a story or random histories until the
promise breaks that the mistake must break. Other promises do not count. A mutant whose line is gone fails
its test, so that this list keeps up with the code. `make mutants` counts how many mistakes random histories
find, whether they have a story or not.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.model.mutants import MUTANTS, Mutant
from tests.model.mutate import breaks

HUNT = "tests.model.hunt"
HISTORIES = 200


def cases() -> list[object]:
    """One mutant of each promise, and those that a story kills, are short; the others hunt for long."""
    first = {m.promise: m for m in reversed(MUTANTS)}
    return [
        pytest.param(
            m,
            id=f"{m.promise}: {m.mistake}",
            marks=() if m.story or first[m.promise] is m else pytest.mark.long,
        )
        for m in MUTANTS
    ]


@pytest.mark.parametrize("mutant", cases())
def test_a_mistake_is_caught_as_the_promise_that_it_breaks(mutant: Mutant) -> None:
    tried = ["--story", mutant.story] if mutant.story else ["--histories", str(HISTORIES)]
    tried += ["--rollout", json.dumps(mutant.rollout)] if mutant.rollout is not None else []

    assert breaks(mutant, HUNT, *tried, "--promise", str(mutant.promise))


def test_the_planner_as_it_is_breaks_none_of_them():
    assert not breaks(None, HUNT, "--histories", "3")


def test_a_break_of_another_promise_does_not_count():
    mutant = next(m for m in MUTANTS if m.promise == 7)

    assert breaks(mutant, HUNT, "--histories", "3")
    assert not breaks(mutant, HUNT, "--promise", "1", "--histories", "3")


def test_every_promise_has_its_mistakes():
    counts = Counter(m.promise for m in MUTANTS)

    assert set(counts) == {*range(1, 10), 11, 12, 14, 15, 17, 18}
    assert min(counts.values()) >= 2
