"""A pin that another release has written keeps its label, though this release cannot read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import NOW, WorkerBuilder, make_worker
from tests.support.identities import D1, D2, asks, decided, fleet_of, has, holds, served, verdicts
from tests.support.present import present
from tests.unit.core import test_lora_pins as adapters

from fleet_operator.core.decision import Decision
from fleet_operator.core.weights_status import refused_status
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import MAX_PINNED, FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.unread import Unread, UnreadEntry

PATH_7, PATH_8 = "/weights/step_7", "/weights/step_8"
NEW_SOURCE = {"s3": {"uri": "s3://bucket/8"}}
BLAKE = "blake3:" + "b" * 64
PIN_OF_8: dict[str, Any] = {"version": "8", "digest": D2, "source": {"path": PATH_8}}
UNREAD = [
    pytest.param(PIN_OF_8 | {"source": NEW_SOURCE}, id="an unknown source"),
    pytest.param(PIN_OF_8 | {"digest": BLAKE}, id="an unknown digest"),
    pytest.param({"version": "8", "digests": [D2], "source": {}}, id="another shape"),
    pytest.param({"label": {"version": "8"}}, id="a name that cannot be read either"),
    pytest.param("8", id="no object"),
]


def reading(*pinned: Any, version: str = "7", path: str = PATH_7) -> FleetStatus:
    """The status of a fleet that serves a version, and whose other pins are stored like this."""
    before = served(version, path, D1)
    stored = before.to_json()
    return FleetStatus.read(stored | {"pinned": [*pinned, *stored["pinned"]]})


def serving(
    ordinal: int, version: str = "7", path: str = PATH_7, digest: str = D1
) -> WorkerBuilder:
    return has(make_worker(ordinal).serving(version), path, digest)


def stalled(made: Decision) -> str:
    found = present(condition_of(made.fleet.conditions, ConditionType.STALLED))
    return str(found.reason)


def message_of(made: Decision) -> str:
    """The message of `Stalled` of the WeightVersion."""
    (weights,) = made.weights.values()
    found = present(condition_of(weights.conditions, ConditionType.STALLED))
    return found.message


@pytest.mark.parametrize("digest", [None, D2])
@pytest.mark.parametrize("raw", UNREAD)
def test_its_version_is_refused_and_no_worker_is_called_for_it(raw, digest):
    wants = asks("8", PATH_8, **({"digest": digest} if digest else {}))
    made = decided(fleet_of(*map(serving, range(3)), wants=wants, status=reading(raw)))

    assert verdicts(made) == ("PinUnreadable", "PinUnreadable")
    assert not made.worker_calls
    assert ("another version" in message_of(made)) == (
        raw in [each.values[0] for each in UNREAD[:3]]
    )
    assert present(made.fleet.applied).version == "7"
    assert made.fleet.to_json()["pinned"][0] == raw


@pytest.mark.parametrize("raw", UNREAD[:3])
def test_other_versions_are_rolled_out(raw):
    wants = asks("9", "/weights/step_9")
    made = decided(fleet_of(*map(serving, range(3)), wants=wants, status=reading(raw)))

    assert {call.kind for call in made.worker_calls} == {"stage"}
    assert "8" not in {pin.version for pin in made.fleet.pinned}


@pytest.mark.parametrize("raw", UNREAD[3:])
def test_without_its_name_only_versions_with_a_pin_are_rolled_out(raw):
    workers = [serving(n) for n in range(3)]
    refused = decided(fleet_of(*workers, wants=asks("9", "/weights/9"), status=reading(raw)))
    pinned = {"version": "10", "digest": D2, "source": {"path": "/weights/10"}}
    known = decided(
        fleet_of(*workers, wants=asks("10", "/weights/10"), status=reading(raw, pinned))
    )

    assert verdicts(refused) == ("PinUnreadable", "PinUnreadable")
    assert "another version" not in message_of(refused), "it would be refused as well"
    assert {call.kind for call in known.worker_calls} == {"stage"}


@pytest.mark.parametrize("raw", UNREAD[:3])
def test_workers_that_serve_the_version_go_on_and_none_joins_with_it(raw):
    before = FleetStatus.read(
        {"applied": PIN_OF_8 | {"appliedAt": NOW.isoformat()}, "pinned": [raw]}
    )
    members = [serving(n, "8", PATH_8, D2) for n in range(2)]
    joiner = has(make_worker(2).joining("8"), PATH_8, D2)
    made = decided(fleet_of(*members, joiner, wants=asks("8", PATH_8), status=before))

    assert not [c for c in made.worker_calls if c.kind in {"admit", "load", "apply", "fence"}]
    assert not made.pod_actions
    assert made.fleet.pinned == ()
    assert made.fleet.to_json()["pinned"] == [raw]


def test_a_digest_that_cannot_be_read_is_not_replaced_by_that_of_a_worker():
    raw = PIN_OF_8 | {"digest": BLAKE}
    before = FleetStatus.read({"applied": PIN_OF_8 | {"digest": BLAKE}, "pinned": [raw]})
    made = decided(fleet_of(*(serving(n, "8", PATH_8, D1) for n in range(3)), status=before))

    assert made.fleet.to_json()["pinned"] == [raw]
    assert made.fleet.to_json()["applied"]["digest"] == BLAKE
    assert not made.worker_calls


@pytest.mark.parametrize("lost", [{"source": NEW_SOURCE}, {"source": NEW_SOURCE, "digest": BLAKE}])
def test_the_applied_weights_stay_the_applied_ones(lost):
    """Their workers serve on, their record stays, and it is reported."""
    applied = PIN_OF_8 | lost | {"appliedAt": NOW.isoformat()}
    before = FleetStatus.read({"applied": applied, "pinned": [PIN_OF_8 | lost]})
    workers = [make_worker(n).serving("8").reporting(source=None, digest=D2) for n in range(3)]
    made = decided(fleet_of(*workers, status=before))

    assert not made.worker_calls
    assert not made.pod_actions
    assert made.fleet.to_json()["applied"].items() >= (PIN_OF_8 | lost).items()
    assert made.fleet.applied_version == "8"
    assert stalled(made) == "StatusUnreadable"


def test_a_weightversion_reports_its_own_status_and_ready_stays_as_it_is():
    entry = UnreadEntry(within="history", number=0, raw={"version": "3", "result": "Skipped"})
    wants = asks("7", PATH_7)
    status = wants.status.model_copy(update={"unread": Unread(entries=(entry,))})
    observed = fleet_of(*map(serving, range(3)), wants=wants, status=served("7", PATH_7, D1))
    (without,) = decided(observed).weights.values()
    made = decided(replace(observed, weights=(replace(wants, status=status),)))
    (weights,) = made.weights.values()

    found = present(condition_of(weights.conditions, ConditionType.STALLED))
    assert found.reason == "StatusUnreadable"
    assert "history[0] (version 3)" in found.message
    ready = ConditionType.READY
    assert condition_of(weights.conditions, ready) == condition_of(without.conditions, ready)
    assert entry.raw in weights.to_json()["history"]


def test_a_weightversion_that_steers_no_fleet_keeps_what_cannot_be_read():
    entry = UnreadEntry(within="history", number=0, raw={"version": "3", "result": "Skipped"})
    wants = asks("7", PATH_7)
    status = wants.status.model_copy(update={"unread": Unread(entries=(entry,))})
    reason = ConditionReason.FLEET_NOT_FOUND
    made = refused_status(replace(wants, status=status), reason, "no fleet", now=NOW)

    assert made.to_json()["history"] == [entry.raw]


@pytest.mark.parametrize(
    ("raw", "refused"),
    [
        pytest.param({"adapter": "sql", "version": "7", "digests": [D2]}, True, id="its own"),
        pytest.param({"adapter": ["sql"], "version": "7"}, True, id="perhaps its own"),
        pytest.param({"adapter": "chat", "version": "7"}, False, id="that of another adapter"),
    ],
)
def test_a_version_of_an_adapter_is_refused_for_its_own_pin(raw, refused):
    worker = adapters.has(make_worker(0).serving("base"), None, staged=D1)
    observed = adapters.fleet_of(worker, wants=adapters.asks())
    status = FleetStatus.read(observed.status.to_json() | {"pinnedAdapters": [raw]})
    made = decided(replace(observed, status=status))

    assert (adapters.reason_of(made) == "PinUnreadable") == refused
    assert (made.fleet.pinned_adapters == ()) == refused
    assert raw in made.fleet.to_json()["pinnedAdapters"]


def test_a_version_that_a_trainer_drives_gets_no_second_pin():
    external = {"roots": ["/weights"], "management": "External"}
    workers = [serving(n, "8", PATH_8, D1) for n in range(3)]
    made = decided(fleet_of(*workers, weights=external, status=reading(PIN_OF_8 | {"source": {}})))

    assert [pin.version for pin in made.fleet.pinned] == ["7"]
    assert stalled(made) == "StatusUnreadable"


def test_marks_of_dropped_pins_that_cannot_be_read_may_be_of_each_version_without_a_pin():
    before = served("7", PATH_7, D1).to_json() | {"droppedPins": {"filter": "of a newer release"}}
    before["droppedPins"]["runs"] = "of another shape"
    status = FleetStatus.read(before)
    made = decided(fleet_of(*map(serving, range(2)), wants=asks("8", PATH_8), status=status))

    assert verdicts(made) == ("PinUnreadable", "PinUnreadable")
    assert made.fleet.to_json()["droppedPins"] == before["droppedPins"]


def test_a_pin_that_gives_way_next_to_one_that_cannot_be_read_leaves_a_mark():
    older = [
        PIN_OF_8 | {"version": str(n), "runID": "first", "source": {"path": f"/weights/{n}"}}
        for n in range(MAX_PINNED - 2)
    ]
    status = reading(PIN_OF_8 | {"digest": BLAKE}, *older)
    staged = [holds(serving(n), "9", "/weights/9", D2, None) for n in range(2)]
    made = decided(fleet_of(*staged, wants=asks("9", "/weights/9"), status=status))

    assert [pin["version"] for pin in made.fleet.to_json()["pinned"]][:3] == ["9", "8", "0"]
    assert [(m.run_id, m.up_to) for m in present(made.fleet.dropped_pins).runs] == [
        ("first", MAX_PINNED - 3)
    ]
