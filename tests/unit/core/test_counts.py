"""Nouns and verbs agree with their numbers."""

from __future__ import annotations

import pytest

from fleet_operator.counts import agree, counted, counted_of


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 workers"), (1, "1 worker"), (2, "2 workers")], ids=str
)
def test_only_one_is_singular(number, words):
    assert counted(number, "worker") == words
    assert agree(number, "is", "are") == ("is" if number == 1 else "are")


@pytest.mark.parametrize(
    ("part", "total", "words"),
    [
        (0, 1, "0 of 1 worker serves"),
        (1, 1, "1 of 1 worker serves"),
        (1, 3, "1 of 3 workers serves"),
        (0, 3, "0 of 3 workers serve"),
        (2, 3, "2 of 3 workers serve"),
        (0, 0, "0 of 0 workers serve"),
        (2, 1, "2 workers (1 wanted) serve"),
        (1, 0, "1 worker (0 wanted) serves"),
    ],
)
def test_a_part_of_a_total_has_the_noun_of_the_total(part, total, words):
    assert counted_of(part, total, "worker", "serves", "serve") == words
