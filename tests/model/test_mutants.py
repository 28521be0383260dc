"""The harness bites: for every promise, mistakes in the planner that it catches.

Each mistake is made in this process (`mutate`), and then a story or random histories are played until the
promise breaks that the mistake must break. Other promises do not count. A mutant whose line is gone fails
its test, so that this list keeps up with the code. `make mutants` counts how many mistakes random histories
find, whether they have a story or not.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from tests.model.hunt import breaks
from tests.model.mutants import MUTANTS, RULES, LeftOut, Mutant
from tests.model.mutate import mistaken
from tests.model.random_history import history
from tests.model.reach import differing
from tests.model.stories import STORIES, a_rollout

from fleet_operator.core import permits
from fleet_operator.core.advance import Mode
from fleet_operator.core.worker_view import Standing

HISTORIES = 200


def cases() -> list[object]:
    """One mutant of each promise, and those that a story kills, are short; the others hunt for long."""
    first = {m.promise: m for m in reversed(MUTANTS)}
    return [
        pytest.param(
            m,
            id=m.name,
            marks=() if m.story or first[m.promise] is m else pytest.mark.long,
        )
        for m in MUTANTS
    ]


@pytest.mark.parametrize("mutant", cases())
def test_a_mistake_is_caught_as_the_promise_that_it_breaks(mutant: Mutant) -> None:
    if mutant.story:
        story = next(s for s in STORIES if s.__name__ == mutant.story)
        assert breaks(mutant, lambda _: story(), mutant.promise, histories=1)
    else:
        play = partial(history, rollout=mutant.rollout)
        assert breaks(mutant, play, mutant.promise, histories=HISTORIES)


def test_the_planner_as_it_is_breaks_none_of_them():
    assert not breaks(None, history, promise=7, histories=3)


def test_a_break_of_another_promise_does_not_count():
    mutant = next(m for m in MUTANTS if m.promise == 7)

    assert breaks(mutant, history, 7, histories=3)
    assert not breaks(mutant, history, 1, histories=3)


def test_a_mistake_ends_with_its_history():
    pinned, chain = vars(permits)["_pinned"], permits.PERMITS
    code = pinned.__code__
    with mistaken(next(m for m in MUTANTS if m.file == "core/permits.py")):
        assert pinned.__code__ is not code
    with mistaken(LeftOut(permits, "PERMITS", pinned)):
        assert pinned not in permits.PERMITS

    assert pinned.__code__ is code
    assert permits.PERMITS is chain


def test_a_rule_that_a_history_does_not_need_makes_no_difference_in_it():
    with differing(RULES) as numbers:
        a_rollout()
    reached = {RULES[n].rule for n in numbers}

    assert {(Standing.HELD, Mode.LOAD), (Standing.HELD, Mode.SERVE)} <= reached
    assert (Standing.OPEN, Mode.OUT) not in reached, "no canary was asked for"


def test_every_promise_has_its_mistakes():
    counts = Counter(m.promise for m in MUTANTS)

    assert set(counts) == {*range(1, 10), 11, 12, 14, 15, 17, 18}
    assert min(counts.values()) >= 2
