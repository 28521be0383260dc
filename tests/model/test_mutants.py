"""The harness bites: mistakes in the planner are caught.

Each mistake is made in this process (`mutate`). Those with a story must break their own promise in it. Of the others
the first one of each promise is hunted in random histories; other promises do not count. `score` counts how many
of all mistakes random histories find. A mutant whose line is gone fails, so that the list keeps up with the code.
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
from tests.model.score import TRIED, Score, measure
from tests.model.stories import STORIES, a_rollout

from fleet_operator.core import permits
from fleet_operator.core.advance import Mode
from fleet_operator.core.worker_view import Standing

HISTORIES = 200
STEPS, LEAST_PERCENT = 10_000, 30
"""It was 36 % when this was written. Each change of the planner changes the histories."""
FIRST = {m.promise: m for m in reversed(MUTANTS) if not m.story}.values()
"""The first of each promise in the list: one that few histories suffice to find."""


@pytest.mark.parametrize("mistake", TRIED, ids=lambda m: m.name)
def test_a_mistake_can_be_made(mistake):
    with mistaken(mistake):
        pass


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.story], ids=lambda m: m.name)
def test_a_mistake_breaks_its_promise_in_its_story(mutant: Mutant) -> None:
    story = next(s for s in STORIES if s.__name__ == mutant.story)

    assert breaks(mutant, lambda _: story(), mutant.promise, histories=1)


@pytest.mark.parametrize("mutant", FIRST, ids=lambda m: m.name)
def test_a_mistake_breaks_its_promise_in_random_histories(mutant: Mutant) -> None:
    play = partial(history, rollout=mutant.rollout)

    assert breaks(mutant, play, mutant.promise, histories=HISTORIES)


@pytest.mark.long
def test_random_histories_find_about_as_many_mistakes_as_before():
    score = Score(frozenset(range(len(TRIED))))

    measure(score, STEPS, processes=1)

    assert score.percent >= LEAST_PERCENT


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
