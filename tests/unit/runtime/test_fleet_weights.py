"""The index of one fleet's WeightVersions: their order, the bound, and turns beyond it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import NOW, make_weights

from fleet_operator.core.idle_weights import idle_status, says_too_many
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.steering import LOOKED_AT, too_many
from fleet_operator.runtime.fleet_weights import AT_ONCE, TURN_SECONDS, FleetWeights


def numbered(number: int, *, second: int | None = None) -> WeightsView:
    made_at = NOW + timedelta(seconds=number if second is None else second)
    return make_weights("1", name=f"w{number:04}", uid=f"w{number}", created_at=made_at)


def told(weights: WeightsView) -> WeightsView:
    return replace(weights, status=idle_status(weights, too_many(weights.fleet), NOW))


def filled(number: int) -> FleetWeights:
    index = FleetWeights()
    for each in range(number):
        index.put(numbered(each))
    return index


def names_of(found: list[WeightsView]) -> list[str]:
    return [each.name for each in found]


CHANGES = st.tuples(
    st.integers(0, LOOKED_AT + 20), st.integers(0, 3), st.sampled_from(["put", "tell", "drop"])
)


@given(st.lists(CHANGES, max_size=60))
def test_it_has_the_oldest_and_those_beyond_without_a_status_after_any_changes(changes):
    index, known = FleetWeights(), dict[str, WeightsView]()
    for number in range(LOOKED_AT):
        index.put(each := numbered(number, second=2))
        known[each.name] = each
    for number, second, change in changes:
        each = numbered(number, second=second)
        if change == "drop":
            index.remove(each.name)
            known.pop(each.name, None)
            continue
        known[each.name] = each if change == "put" else told(known.get(each.name, each))
        index.put(known[each.name])
    order = sorted(known.values(), key=lambda w: (w.created_at, w.name))
    assert index.looked_at == order[:LOOKED_AT]
    assert (len(index), index.beyond) == (len(order), len(order[LOOKED_AT:]))
    due = [w.name for w in order[LOOKED_AT:] if not says_too_many(w)]
    seen: set[str] = set()
    for turn in range(len(due) // AT_ONCE + 1):
        seen |= {w.name for w in index.turn(turn * TURN_SECONDS)}
    assert seen == set(due)


def test_a_turn_stays_the_same_until_the_next_one_and_ends_with_its_statuses():
    index = filled(LOOKED_AT + 2 * AT_ONCE)
    first = index.turn(0.0)
    assert names_of(first) == [f"w{LOOKED_AT + n:04}" for n in range(AT_ONCE)]
    assert index.turn(TURN_SECONDS / 2) == first
    assert index.turn_in_seconds(TURN_SECONDS / 2) == TURN_SECONDS / 2
    assert not index.put(told(first[0])), "the fleet has nothing to do for it"
    assert index.turn(TURN_SECONDS / 2) == first[1:]
    assert names_of(index.turn(TURN_SECONDS)) == [
        f"w{LOOKED_AT + AT_ONCE + n:04}" for n in range(AT_ONCE)
    ]
    for each in range(LOOKED_AT, LOOKED_AT + 2 * AT_ONCE):
        index.put(told(numbered(each)))
    assert index.turn(2 * TURN_SECONDS) == []
    assert index.turn_in_seconds(2 * TURN_SECONDS) == float("inf")


def test_of_many_that_come_at_once_the_first_one_asks_for_the_turns_of_all():
    """The fleet of a tenant that made 1,000 of them was reconciled for each, which delayed the other tenants."""
    index = filled(LOOKED_AT)
    asks = [index.put(numbered(LOOKED_AT + n)) for n in range(100)]
    assert asks == [True] + 99 * [False]
    assert index.turn_in_seconds(0) == 0
    for each in range(LOOKED_AT, LOOKED_AT + 100):
        index.put(told(numbered(each)))
    assert index.put(numbered(LOOKED_AT + 100)), "no turn is planned any more"
    assert index.put(numbered(0, second=9999)), "the fleet looks at another one instead"


def test_one_that_is_created_again_takes_the_place_of_its_new_age():
    index = filled(3)
    index.put(replace(numbered(0), uid="again", created_at=NOW + timedelta(hours=1)))
    assert names_of(index.looked_at) == ["w0001", "w0002", "w0000"]
