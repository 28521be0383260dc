"""How long a leader has seen a pod wait, whatever the wall clocks of the cluster say."""

from __future__ import annotations

from dataclasses import replace

from tests.support.builders import NOW, make_worker

from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.pod_timers import PodTimers

POD = make_worker(0).not_running().pod_view()
GATE = PodWait(awaited=Awaited.GATE, reason="SchedulingGated", since=NOW)
NODE = PodWait(awaited=Awaited.NODE, reason="Unschedulable", since=NOW)


def waiting(wait: PodWait | None, pod: PodView = POD) -> PodView:
    return replace(pod, wait=wait)


def seen(watch: PodTimers, wait: PodWait | None, now: float) -> PodWait:
    (pod,) = watch.update([waiting(wait)], now)
    assert pod.wait is not None
    return pod.wait


def test_a_leader_that_finds_a_wait_counts_from_its_first_reconcile_and_has_not_seen_it_begin():
    watch = PodTimers()

    assert seen(watch, NODE, 10.0).saw_it_begin is False
    found = seen(watch, NODE, 25.0)

    assert (found.watched_seconds, found.saw_it_begin) == (15.0, False)


def test_a_gate_that_goes_begins_the_wait_for_a_node():
    watch = PodTimers()
    seen(watch, GATE, 0.0)
    seen(watch, NODE, 7200.0)

    found = seen(watch, NODE, 7260.0)

    assert (found.watched_seconds, found.saw_it_begin) == (60.0, True)


def test_a_new_pod_of_a_fleet_that_was_reconciled_before_waits_since_now():
    watch = PodTimers()
    watch.update([], 0.0)

    found = seen(watch, NODE, 5.0)

    assert (found.watched_seconds, found.saw_it_begin) == (0.0, True)


def test_other_words_for_the_same_wait_do_not_begin_it_again():
    watch = PodTimers()
    pull = PodWait(awaited=Awaited.IMAGE, reason="ErrImagePull", message="timeout")
    watch.update([waiting(None)], 0.0)
    seen(watch, pull, 1.0)

    found = seen(watch, replace(pull, reason="ImagePullBackOff", message="Back-off"), 31.0)

    assert (found.reason, found.watched_seconds) == ("ImagePullBackOff", 30.0)


def test_a_wait_that_came_back_is_another_one():
    watch = PodTimers()
    seen(watch, NODE, 0.0)
    watch.update([waiting(None)], 100.0)

    assert seen(watch, NODE, 200.0).watched_seconds == 0.0


def test_another_pod_of_the_same_name_begins_its_own_wait():
    watch = PodTimers()
    seen(watch, NODE, 0.0)

    (pod,) = watch.update([replace(waiting(NODE), uid="another")], 100.0)

    assert pod.wait is not None
    assert (pod.wait.watched_seconds, pod.wait.saw_it_begin) == (0.0, True)


def test_unchanged_pods_that_do_not_wait_are_returned_as_they_are():
    watch = PodTimers()
    pods = (waiting(None), waiting(None, make_worker(1).pod_view()))

    assert watch.update(pods, 0.0) is pods
    assert watch.update(pods, 5.0) is pods


def test_a_wait_that_begins_after_a_reconcile_of_settled_pods_was_seen_to_begin():
    watch = PodTimers()
    watch.update((waiting(None),), 0.0)

    seen(watch, NODE, 5.0)
    found = seen(watch, NODE, 9.0)

    assert (found.watched_seconds, found.saw_it_begin) == (4.0, True)
