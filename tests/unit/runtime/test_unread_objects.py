"""Objects that could not be read are kept with what is true of them now."""

from __future__ import annotations

from fleet_operator.errors import ObjectUnread
from fleet_operator.ports import Json
from fleet_operator.runtime.unread_objects import UnreadObjects
from rlfleet_resources import names

KEY = ("rl", "policy")
POD: Json = {
    "metadata": {
        "uid": "1",
        "namespace": "rl",
        "name": "policy-0",
        "labels": {names.LABEL_FLEET: "policy"},
    }
}


def test_an_object_that_is_unread_for_another_cause_now_is_shown_with_that_one():
    woken: list[tuple[str, str]] = []
    unread = UnreadObjects(woken.append)
    unread.note("pods", POD, ObjectUnread("it has 2 MB"))
    woken.clear()

    unread.note("pods", POD, ObjectUnread("it has 3 MB"))

    assert [str(error) for error in unread.of(KEY).values()] == ["it has 3 MB"]
    assert KEY in woken


def test_an_object_that_is_unread_for_the_same_cause_wakes_its_fleet_once():
    woken: list[tuple[str, str]] = []
    unread = UnreadObjects(woken.append)
    for _ in range(2):
        unread.note("pods", POD, ObjectUnread("it has 2 MB"))

    assert woken == [KEY]
