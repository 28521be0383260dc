"""Epochs grow with every goal, so that late calls are told apart from today's."""

from __future__ import annotations

from fleet_operator.runtime.epochs import Epochs
from fleet_worker.protocol import Epoch

KEY, OTHER = ("rl", "policy"), ("rl", "other")


def test_the_sequence_grows_with_every_new_goal_and_only_then():
    epochs = Epochs(lambda: 5)
    sequences = [epochs.for_step(KEY, goal).sequence for goal in ("1", "1", "2", "2", "1")]

    assert sequences == [1, 1, 2, 2, 3]


def test_the_last_epoch_is_that_of_the_present_goal():
    epochs = Epochs(lambda: 5)
    assert epochs.last(KEY) == Epoch(term=5, sequence=0)
    epochs.for_step(KEY, "1")
    assert epochs.last(KEY) == Epoch(term=5, sequence=1)


def test_fleets_count_by_themselves():
    epochs = Epochs(lambda: 5)
    epochs.for_step(KEY, "1")

    assert epochs.last(OTHER).sequence == 0


def test_the_term_is_always_todays():
    terms = iter((5, 9))
    epochs = Epochs(lambda: next(terms))

    assert epochs.for_step(KEY, "1") < epochs.for_step(KEY, "1")
