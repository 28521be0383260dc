"""Results for an object that does not change are not computed again."""

from __future__ import annotations

import pytest

from fleet_operator.core.memory import KEPT_AT_MOST, SpecCache


class Thing:
    """Compared by identity."""


def test_a_value_is_computed_once_for_each_object_and_arguments():
    memory: SpecCache[str] = SpecCache()
    one, other = Thing(), Thing()
    made: list[tuple[Thing, str]] = []

    def value(thing: Thing, word: str) -> str:
        def make() -> str:
            made.append((thing, word))
            return f"{word} {len(made)}"

        return memory.of(thing, word, make=make)

    found = [value(*each) for each in ((one, "a"), (one, "b"), (other, "a"), (one, "a"))]

    assert found == ["a 1", "b 2", "a 3", "a 1"]


def test_a_failed_computation_is_repeated():
    memory: SpecCache[str] = SpecCache()
    thing = Thing()

    def fail() -> str:
        raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        memory.of(thing, make=fail)

    assert memory.of(thing, make=lambda: "now") == "now"


def test_the_number_of_values_is_bounded_and_objects_do_not_share_them():
    memory: SpecCache[int] = SpecCache()

    found = [memory.of(Thing(), make=lambda n=n: n) for n in range(3 * KEPT_AT_MOST)]

    assert found == list(range(3 * KEPT_AT_MOST))
    assert len(memory._known) == KEPT_AT_MOST
