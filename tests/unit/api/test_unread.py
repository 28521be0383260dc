"""The parts of a status that another release has written stay there, whatever this release writes.

The fields come from the models, so that a list which is added later is covered.
"""

from __future__ import annotations

import copy
import types
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from rlfleet_resources.base import Resource, renewed
from rlfleet_resources.conditions import MAX_CONDITIONS
from rlfleet_resources.fleet_status import FleetStatus, PinnedWeights
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.source import WeightSource
from rlfleet_resources.status import Status, bounds_of
from rlfleet_resources.weights_status import WeightsStatus

STATUSES = (FleetStatus, WeightsStatus)
DIGEST = "sha256:" + "a" * 64
NEW_SOURCE = {"s3": {"uri": "s3://bucket/key"}}
NEW_DIGEST = "blake3:" + "b" * 64
WHEN = "2026-01-01T00:00:00.000000Z"


def example(kind: Any, number: int) -> Any:  # noqa: PLR0911 - one for each kind
    """A value of a kind that this release can read. `number`: distinguishes values."""
    if get_origin(kind) in {Union, types.UnionType}:
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) is tuple:
        return [example(get_args(kind)[0], n) for n in range(3)]
    if kind is WeightSource:
        return {"path": f"/weights/{number}"}
    if isinstance(kind, type) and issubclass(kind, Resource):
        return whole(kind, number)
    if kind is str:
        return f"text-{number}"
    if kind is bool:
        return True
    if kind is int or kind is float:
        return number
    try:
        return next(iter(kind))
    except TypeError:
        return WHEN  # a time


def whole(model: type[Resource], number: int = 0) -> dict[str, Any]:
    """An object with each field of a model."""
    found = {}
    for field in model.model_fields.values():
        if field.exclude:
            continue
        value = example(field.annotation, number)
        found[str(field.alias)] = {"digest": DIGEST, "names": "0f"}.get(str(field.alias), value)
    return found


def lists(status: type[Status]) -> list[str]:
    return [str(f.alias) for f in status.model_fields.values() if is_list(f)]


def is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


CASES = [
    pytest.param(status, name, id=f"{status.__name__} {name}")
    for status in STATUSES
    for name in lists(status)
]


def strange(entry: Any) -> list[Any]:
    """An entry with an unknown source, an unknown digest and an unknown field, and one of another shape."""
    if not isinstance(entry, dict):
        return [entry, {"new": "shape"}]
    found = [entry | {"newField": {"a": [1, None]}}, {"new": "shape"}, "a word"]
    if "source" in entry:
        found.append(entry | {"source": NEW_SOURCE})
    if "digest" in entry:
        found.append(entry | {"digest": NEW_DIGEST})
    return found


def stored_with(status: type[Status], name: str) -> dict[str, Any]:
    """A status whose list has a strange entry before, between and after those that can be read."""
    found = whole(status)
    first, second, third = found[name]
    if name == "conditions":
        kinds = ("Ready", "Progressing", "Stalled")
        first, second, third = ({**e, "type": k} for e, k in zip(found[name], kinds, strict=True))
    other = example_of(status, name, 9)
    odd = strange(copy.deepcopy(other))
    if name == "conditions":
        odd = [{**e, "type": f"New{n}"} for n, e in enumerate(odd) if isinstance(e, dict)][:3]
    found[name] = [odd[1], first, *odd[2:], second, third, odd[0]]
    return found


@pytest.mark.parametrize("status", STATUSES)
def test_the_example_has_each_field_and_can_be_read(status: type[Status]) -> None:
    stored = whole(status)
    read = status.read(stored)

    assert read.unread_parts == ()
    assert status.read(read.to_json()) == read
    assert set(stored) == {str(f.alias) for f in status.model_fields.values() if not f.exclude}
    assert set(lists(status)) == set(bounds_of(status))


@pytest.mark.parametrize(("status", "name"), CASES)
def test_each_list_is_written_back_as_it_was(status: type[Status], name: str) -> None:
    stored = stored_with(status, name)
    read = status.read(stored)

    assert read.to_json()[name] == stored[name]
    assert status.read(read.to_json()) == read
    if name != "conditions":
        strange_ones = [e for e in stored[name] if e in ("a word", {"new": "shape"})]
        assert len([p for p in read.unread_parts if p.startswith(f"{name}[")]) >= len(strange_ones)


@pytest.mark.parametrize(("status", "name"), CASES)
def test_a_new_entry_does_not_remove_what_cannot_be_read(status: type[Status], name: str) -> None:
    stored = stored_with(status, name)
    read = status.read(stored)
    field = next(n for n, f in status.model_fields.items() if f.alias == name)
    entries = getattr(read, field)
    new = status.read({name: [example_of(status, name, 10)]})
    added = getattr(new, field)
    made = renewed(read, **{**read.__dict__, field: (*added, *entries[1:])}).to_json()[name]

    kept = [e.raw for e in read.unread.entries]
    assert kept
    assert [e for e in made if e in kept] == kept


def example_of(status: type[Status], name: str, number: int) -> Any:
    field = next(f for f in status.model_fields.values() if f.alias == name)
    return example(get_args(field.annotation)[0], number)


@pytest.mark.parametrize(("status", "name"), CASES)
def test_a_list_is_never_longer_than_the_crd_allows(status: type[Status], name: str) -> None:
    most = bounds_of(status)[name]
    entries = [example_of(status, name, n) for n in range(most)]
    if name == "conditions":
        entries = entries[:1]
    odd = [{"type": f"New{n}", "new": n} for n in range(most)]
    read = status.read({name: [*entries, *odd]})

    assert len(read.to_json()[name]) == most
    assert read.to_json()[name] == [*entries, *odd][:most]


@pytest.mark.parametrize("status", STATUSES)
def test_unknown_fields_of_the_status_stay(status: type[Status]) -> None:
    stored = whole(status) | {"newField": {"a": 1}, "unread": "a field of a later release"}
    read = status.read(stored)

    assert read.to_json().items() >= {"newField": {"a": 1}, "unread": stored["unread"]}.items()
    assert read.unread_parts == ()
    changed = renewed(read, **{**read.__dict__, "observed_generation": 7}).to_json()
    assert changed["newField"] == {"a": 1}
    assert changed["observedGeneration"] == 7


@pytest.mark.parametrize("lost", [{"source": NEW_SOURCE}, {"digest": NEW_DIGEST}])
@pytest.mark.parametrize("status", STATUSES)
def test_the_applied_weights_keep_their_name_and_what_cannot_be_read(
    status: type[Any], lost: dict[str, Any]
) -> None:
    applied = whole(status)["applied"] | lost | {"newField": 1}
    read = status.read({"applied": applied})
    (name,) = lost

    assert read.applied.version == applied["version"]
    assert getattr(read.applied, name) is None
    assert read.unread_parts == (
        f"applied.{name} (version {applied['version']}, runID {applied['runID']})",
    )
    assert read.to_json()["applied"] == applied
    seen = read.applied.model_copy(update={"applied_at": None})
    assert (
        renewed(read, **{**read.__dict__, "applied": seen}).to_json()["applied"].items()
        >= {
            **lost,
            "newField": 1,
        }.items()
    )
    other = read.applied.model_copy(update={"version": "another"})
    written = renewed(read, **{**read.__dict__, "applied": other}).to_json()["applied"]
    assert not written.keys() & {name, "newField"}
    assert read.model_copy(update={"applied": other}).unread_parts == ()


def test_a_condition_that_this_release_sets_is_there_once() -> None:
    (known,) = FleetStatus.read({"conditions": [whole(FleetStatus)["conditions"][0]]}).conditions
    stored = known.to_json() | {"reason": "InventedLater"}
    read = FleetStatus.read({"conditions": [stored]})

    assert [c.reason for c in read.conditions] == ["InventedLater"]
    assert read.model_copy(update={"conditions": (known,)}).to_json()["conditions"] == [
        known.to_json()
    ]


def test_a_condition_of_this_release_never_gives_way_to_those_of_another_one() -> None:
    own = [
        {**whole(FleetStatus)["conditions"][0], "type": kind, "reason": "NoWorkers"}
        for kind in [*ConditionType][: MAX_CONDITIONS - 1]
    ]
    unknown = [own[0] | {"type": f"InventedLater{n}"} for n in range(3)]
    read = FleetStatus.read({"conditions": [*unknown, own[-1]]})
    ours = FleetStatus.read({"conditions": own}).conditions
    made = read.model_copy(update={"conditions": ours}).to_json()["conditions"]

    assert [c for c in made if c in unknown] == unknown[:1]
    assert [c["type"] for c in made if c not in unknown] == [c["type"] for c in own]


@pytest.mark.parametrize("value", [{"a": "map"}, "a word", 3])
def test_a_record_of_labels_that_cannot_be_read_at_all_is_never_replaced(value: Any) -> None:
    read = FleetStatus.read({"pinned": value, "laggards": value})
    pin = PinnedWeights(version="1", digest=DIGEST, source=WeightSource(path="/weights/1"))

    assert read.unread_parts == ("pinned",)
    assert read.model_copy(update={"pinned": (pin,)}).to_json()["pinned"] == value
    assert read.to_json()["laggards"] == []


def test_a_value_that_cannot_be_read_stays_until_there_is_another_one() -> None:
    stored = {"canary": {"version": "8", "passed": "partly"}, "startedAt": "yesterday"}
    read = WeightsStatus.read(stored)

    assert set(read.unread_parts) == {"canary", "startedAt"}
    assert read.to_json().items() >= stored.items()
    passed = WeightsStatus.read({"canary": {"version": "9", "passed": True}}).canary
    made = read.model_copy(update={"canary": passed})
    assert made.unread_parts == ("startedAt",)
    assert made.to_json()["canary"]["version"] == "9"
