"""A session has all that a process remembers about a fleet, and goes with it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.builders import make_weights
from tests.support.sessions import make_sessions
from tests.support.waiting import soon

from fleet_operator import runtime
from fleet_operator.core.identity import WeightsId
from fleet_operator.runtime.problems import Problems
from fleet_operator.runtime.session import FleetSession, Sessions
from rlfleet_resources.weights_status import RolloutPhase, WeightsStatus

KEY = ("rl", "policy")
RUNTIME = Path(str(runtime.__file__)).parent
INDEXES = {
    "background_writes.py": "writes in flight, which outlast a session and then remove themselves",
    "session.py": "the sessions",
    "store.py": "fleets, WeightVersions and which of them name a fleet, as the watches bring them",
    "pod_informer.py": "pods, as their watch brings them",
    "router_objects.py": "objects of routers, as their watches bring them",
    "unread_objects.py": "objects that a watch could not take in",
}
"""Modules that keep a map by fleet which is not the memory of a fleet."""


@pytest.fixture
def sessions() -> Sessions:
    return make_sessions(problems=Problems(lambda: 0.0))


def test_a_fleet_keeps_its_session(sessions):
    assert sessions.of(KEY, "fleet-1") is sessions.of(KEY, "fleet-1")
    assert sessions.find(KEY) is sessions.of(KEY, "fleet-1")


def test_a_fleet_takes_over_the_session_of_the_weightversions_that_came_before_it(sessions):
    before = sessions.of(KEY)

    assert sessions.of(KEY, "fleet-1") is before


@pytest.mark.parametrize("uid", ["fleet-2", ""], ids=["another fleet", "no fleet"])
def test_after_a_fleet_its_name_has_a_new_session(sessions, uid):
    before = sessions.of(KEY, "fleet-1")
    before.epochs.refused = 7
    before.token.last = "secret"

    after = sessions.of(KEY, uid)

    assert after is not before
    assert (after.epochs.refused, after.token.last) == (None, None)


def test_calls_for_a_fleet_are_newer_than_those_for_an_earlier_fleet_of_its_name(sessions):
    """`--cascade=orphan` leaves its pods, which the next fleet adopts."""
    before = sessions.of(KEY, "fleet-1").epochs
    before.raise_above(7)
    last = [before.for_step({"": WeightsId(version)}, admits=False) for version in "12"][-1]

    assert sessions.of(KEY).epochs.last > last
    assert sessions.of(KEY, "fleet-2").epochs.last > last


def test_weightversions_keep_their_statuses_when_their_fleet_goes(sessions):
    """A watch may be late: it must not bring an older status back."""
    view, status = make_weights("2"), WeightsStatus(phase=RolloutPhase.STAGING)
    sessions.of(KEY, "fleet-1").statuses.take_weights(view, status)

    assert sessions.of(KEY).statuses.weights(view, "1").status == status


def test_a_fleet_that_is_forgotten_leaves_nothing_and_what_is_in_flight_changes_nothing(sessions):
    before = sessions.of(KEY, "fleet-1")
    sessions.forget(KEY)
    before.problems.note("pods", RuntimeError())

    assert sessions.find(KEY) is None
    assert list(sessions) == []
    assert sessions.of(KEY, "fleet-1").problems.all() == ()


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["replaced", "forgotten"])
async def test_no_write_of_an_earlier_fleet_overtakes_one_of_the_next_fleet_of_its_name(
    *, is_forgotten
):
    """A fleet takes the objects of an earlier one over, so their uids do not tell the two writes apart."""
    asked: list[float] = []
    sessions = make_sessions(requeue=lambda _, seconds: asked.append(seconds))
    may_end, written = asyncio.Event(), list[str]()

    async def first() -> None:
        await may_end.wait()
        written.append("fleet-1")

    async def second() -> None:
        written.append("fleet-2")

    sessions.of(KEY, "fleet-1").writes.begin({"ConfigMap policy-applied": first})
    await asyncio.sleep(0)
    if is_forgotten:
        sessions.forget(KEY)
    after = sessions.of(KEY, "fleet-2").writes
    await after.run({"ConfigMap policy-applied": second})
    assert written == []

    may_end.set()
    await soon(lambda: asked == [0])
    await after.run({"ConfigMap policy-applied": second})
    assert written == ["fleet-1", "fleet-2"]


async def test_the_operator_stops_the_writes_of_fleets_that_are_gone_too(sessions):
    async def hang() -> None:
        await asyncio.Event().wait()

    (task,) = sessions.of(KEY, "fleet-1").writes.begin({"pods": hang})
    sessions.forget(KEY)
    await sessions.writing.stop()

    assert task.cancelled()
    assert not sessions.writing.tasks


def test_fleets_have_sessions_of_their_own(sessions):
    sessions.of(KEY, "fleet-1").problems.note("pods", RuntimeError())

    assert sessions.of(("rl", "other"), "fleet-2").problems.all() == ()


def keyed_by_fleet(tree: ast.AST) -> Iterator[str]:
    """Annotations of maps and sets that have fleets as their keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            text = ast.unparse(node)
            if text.startswith(
                ("dict[FleetKey", "set[FleetKey", "Counter[FleetKey", "defaultdict[FleetKey")
            ):
                yield text
            if text.startswith(("dict[tuple[FleetKey", "set[tuple[FleetKey")):
                yield text


def test_no_other_module_keeps_something_by_fleet():
    found = {f.name: list(keyed_by_fleet(ast.parse(f.read_text()))) for f in RUNTIME.glob("*.py")}

    assert {file for file, annotations in found.items() if annotations} == set(INDEXES)


def test_a_map_by_fleet_is_found():
    assert list(keyed_by_fleet(ast.parse("known: dict[FleetKey, int] = {}")))
    assert not list(keyed_by_fleet(ast.parse("known: dict[str, int] = {}")))


def test_a_session_has_only_what_is_documented():
    said = str(FleetSession.__doc__)

    assert [
        name for name in FleetSession.__slots__ if f"{name}:" not in said and f"{name}," not in said
    ] == []
