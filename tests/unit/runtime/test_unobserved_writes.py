"""Writes to pods count from then on, also while the watch is late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import NOW, make_worker

from fleet_operator.core.pod_actions import AdoptPod, BeginDrain, DeletePod, EndDrain, Quarantine
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.unobserved_writes import UnobservedWrites

POD = make_worker(0).pod_view()
DRAINING = make_worker(0).draining_since(NOW).pod_view()
BEGUN = BeginDrain(pod_name="policy-0", pod_uid="uid-0", since=NOW, reason="x")
ENDED = EndDrain(pod_name="policy-0", pod_uid="uid-0", reason="x")


def seen(own: UnobservedWrites, *pods: PodView) -> list[PodView]:
    return list(own.laid_over(pods))


def test_a_drain_counts_before_the_watch_has_it_and_is_forgotten_then():
    own = UnobservedWrites()
    own.note(BEGUN)

    assert seen(own, POD) == [DRAINING]
    assert seen(own, DRAINING) == [DRAINING]
    assert seen(own, POD) == [POD], "somebody else has taken the mark away since"


def test_the_later_one_of_two_writes_counts():
    own = UnobservedWrites()
    own.note(BEGUN)
    own.note(ENDED)

    assert seen(own, DRAINING) == [POD]


def test_what_another_writer_has_made_of_a_write_counts_from_then_on():
    """Else a mark that another controller takes away at once would count forever."""
    own = UnobservedWrites()
    own.note(BEGUN, "12")
    before, undone = replace(POD, version="11"), replace(POD, version="13")

    assert [p.drains_since for p in seen(own, before)] == [NOW]
    assert seen(own, undone) == [undone]
    assert [p.drains_since for p in seen(own, before)] == [None]


def test_without_a_known_version_a_write_counts_until_a_watch_shows_it():
    own = UnobservedWrites()
    own.note(BEGUN)

    assert [p.drains_since for p in seen(own, replace(POD, version="13"))] == [NOW]


@pytest.mark.parametrize(
    ("action", "field", "value"),
    [
        (DeletePod(pod_name="policy-0", pod_uid="uid-0", reason="x"), "deleting", True),
        (Quarantine(pod_name="policy-0", pod_uid="uid-0", reason="silent"), "quarantine", "silent"),
    ],
)
def test_so_do_deletions_and_quarantines(action, field, value):
    own = UnobservedWrites()
    own.note(action)
    (pod,) = seen(own, POD)

    assert getattr(pod, field) == value


def test_other_pods_and_actions_are_left_as_they_are():
    own = UnobservedWrites()
    own.note(BEGUN)
    own.note(AdoptPod(pod_name="policy-1", pod_uid="uid-1", owner={}, reason="x"))
    other = make_worker(1).pod_view()

    assert seen(own, POD, other) == [DRAINING, other]


def test_a_pod_that_is_gone_is_forgotten():
    own = UnobservedWrites()
    own.note(BEGUN)
    assert seen(own) == []
    assert seen(own, POD) == [POD]


def test_a_pod_without_a_write_of_ours_stays_the_same_object():
    own = UnobservedWrites()
    own.note(BEGUN)
    other = make_worker(1).pod_view()

    found = own.laid_over((POD, other))

    assert found[0] == DRAINING
    assert found[1] is other
