"""What was written to pods counts from then on, also while the watch is late."""

from __future__ import annotations

import pytest
from tests.support.builders import NOW, make_worker

from fleet_operator.core.actions import AdoptPod, BeginDrain, DeletePod, EndDrain, Quarantine
from fleet_operator.core.observed import PodView
from fleet_operator.runtime.own_writes import OwnWrites

KEY = ("rl", "policy")
POD = make_worker(0).pod_view()
DRAINING = make_worker(0).draining_since(NOW).pod_view()
BEGUN = BeginDrain(name="policy-0", uid="uid-0", since=NOW, reason="x")
ENDED = EndDrain(name="policy-0", uid="uid-0", reason="x")


def seen(own: OwnWrites, *pods: PodView) -> list[PodView]:
    return own.laid_over(KEY, pods)


def test_a_drain_counts_before_the_watch_has_it_and_is_forgotten_then():
    own = OwnWrites()
    own.note(KEY, BEGUN)

    assert seen(own, POD) == [DRAINING]
    assert seen(own, DRAINING) == [DRAINING]
    assert seen(own, POD) == [POD], "somebody else has taken the mark away since"


def test_of_two_writes_the_later_one_counts():
    own = OwnWrites()
    own.note(KEY, BEGUN)
    own.note(KEY, ENDED)

    assert seen(own, DRAINING) == [POD]


@pytest.mark.parametrize(
    ("action", "field", "value"),
    [
        (DeletePod(name="policy-0", uid="uid-0", reason="x"), "deleting", True),
        (Quarantine(name="policy-0", uid="uid-0", reason="silent"), "quarantine", "silent"),
    ],
)
def test_so_do_deletions_and_quarantines(action, field, value):
    own = OwnWrites()
    own.note(KEY, action)
    (pod,) = seen(own, POD)

    assert getattr(pod, field) == value


def test_other_pods_fleets_and_actions_are_left_as_they_are():
    own = OwnWrites()
    own.note(KEY, BEGUN)
    own.note(KEY, AdoptPod(name="policy-1", uid="uid-1", owner={}, reason="x"))
    other = make_worker(1).pod_view()

    assert seen(own, POD, other) == [DRAINING, other]
    assert own.laid_over(("rl", "another"), [POD]) == [POD]


def test_a_pod_that_is_gone_and_a_fleet_that_is_gone_are_forgotten():
    own = OwnWrites()
    own.note(KEY, BEGUN)
    assert seen(own) == []
    assert seen(own, POD) == [POD]
    own.note(KEY, BEGUN)
    own.forget(KEY)
    assert seen(own, POD) == [POD]
