"""Places go to tenants in turns, and no tenant gets all of them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.turns import Turns


def test_tenants_take_turns_however_much_each_has_added():
    turns: Turns[str] = Turns(100)
    for n in range(20):
        turns.add(("many",), f"many {n}")
    turns.add(("one",), "one")

    assert [turns.take(), turns.take()] == ["many 0", "one"]


def test_the_lowest_rank_of_a_tenant_comes_first_then_the_oldest():
    turns: Turns[str] = Turns(100)
    for name, rank in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        turns.add(("t",), name, rank=rank)

    assert [turns.take() for _ in range(3)] == ["a", "b", "c"]


def test_a_tenant_that_may_not_is_passed_over_and_keeps_its_items():
    turns: Turns[str] = Turns(100)
    turns.add(("held",), "its")
    turns.add(("free",), "other")

    assert turns.take(lambda t: t != "held") == "other"
    assert turns.take(lambda t: t != "held") is None
    assert list(turns.tenants()) == ["held"]
    assert turns.take() == "its"


@given(
    st.integers(1, 30),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), st.sampled_from("xy")),
            st.tuples(st.just("leave"), st.integers(0, 50), st.none()),
        ),
        max_size=200,
    ),
)
def test_no_item_is_lost_and_no_place_is_given_twice(most, steps):
    turns: Turns[tuple[str, str, int]] = Turns(most)
    held: list[tuple[str, str, int]] = []
    waiting: Counter[tuple[str, str]] = Counter()
    for number, (what, first, second) in enumerate(steps):
        if what == "add":
            turns.add((first, second), (first, second, number))
            waiting[first, second] += 1
        elif held:
            item = held.pop(first % len(held))
            turns.leave(item[:2])
        while (item := turns.take()) is not None:
            held.append(item)
            waiting[item[:2]] -= 1
        assert len(held) <= most
        assert len(turns) == waiting.total()
        holders = {h[0] for h in held}
        assert len(held) == most or all(path[0] in holders for path, n in waiting.items() if n)
    while held:
        turns.leave(held.pop()[:2])
        while (item := turns.take()) is not None:
            held.append(item)
            waiting[item[:2]] -= 1
    assert not waiting.total()
    assert not turns._all.parts
