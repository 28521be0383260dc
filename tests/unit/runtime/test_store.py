"""The custom resources as last seen; events of a deleted object never hide its successor."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.counted_calls import operator_calls

from fleet_operator.runtime.store import Store

KEY = ("rl", "policy")


class Seen:
    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.store = Store(self.changes.append)


@pytest.fixture
def seen() -> Seen:
    return Seen()


def fleet(*, uid: str = "u1", replicas: int = 1, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "policy", "namespace": "rl", "uid": uid, "generation": 3} | metadata,
        "spec": {
            "replicas": replicas,
            "model": {"name": "m", "source": {"path": "/models/base"}},
            "weights": {"roots": ["/weights"]},
        },
    }


def weights(
    version: str = "1", *, name: str = "policy", fleet: str = "policy", **metadata: Any
) -> dict[str, Any]:
    given = {"name": name, "namespace": "rl", "uid": f"w-{name}", "generation": 2}
    return {
        "metadata": given | {"creationTimestamp": "2026-01-01T00:00:00Z"} | metadata,
        "spec": {
            "fleetRef": {"name": fleet},
            "version": version,
            "source": {"path": "/weights/{version}"},
        },
    }


GOING = {"deletionTimestamp": "2026-01-02T00:00:00Z"}


def retry_of(seen: Seen, value: str) -> str:
    seen.store.put_weights(weights(annotations={"rlfleet.dev/retry": value}))
    (view,) = seen.store.weights_of(KEY)
    return view.retry


def test_a_retry_annotation_of_any_length_is_kept_short_and_stays_distinct(seen):
    large = "x" * 200_000

    assert retry_of(seen, "2026-11-27T10:00:00.000000+00:00") == "2026-11-27T10:00:00.000000+00:00"
    assert len(retry_of(seen, large)) <= 100
    assert retry_of(seen, large) != retry_of(seen, large + "y")


def test_a_fleet_is_kept_as_it_was_seen_last(seen):
    seen.store.put_fleet(fleet(replicas=1))
    seen.store.put_fleet(fleet(replicas=2))
    record = seen.store.fleet(KEY)

    assert (record.uid, record.generation, record.spec.replicas) == ("u1", 3, 2)
    assert seen.store.fleet_keys() == [KEY]
    assert seen.changes == [KEY, KEY]


def test_a_stored_status_is_read(seen):
    body = fleet() | {"status": {"observedGeneration": 3, "appliedVersion": "7"}}
    seen.store.put_fleet(body)

    assert seen.store.fleet(KEY).status.applied_version == "7"


def test_a_fleet_that_goes_is_not_worked_on_any_more(seen):
    seen.store.put_fleet(fleet())
    seen.store.put_fleet(fleet(**GOING))

    assert seen.store.fleet(KEY) is None
    assert seen.changes == [KEY, KEY]


def test_a_deleted_fleet_is_forgotten_and_reconciled(seen):
    seen.store.put_fleet(fleet())
    seen.store.remove_fleet(fleet())

    assert seen.store.fleet(KEY) is None
    assert seen.store.fleet_keys() == []
    assert seen.changes == [KEY, KEY]


def test_removing_an_unknown_object_does_nothing(seen):
    seen.store.remove_fleet(fleet())
    seen.store.remove_weights(weights())


@pytest.fixture(params=["fleet", "weights"])
def named(seen: Seen, request: pytest.FixtureRequest) -> Named:
    """Objects of one kind, all with one name."""
    return Named(seen, request.param)


class Named:
    def __init__(self, seen: Seen, kind: str) -> None:
        self._seen, self._kind = seen, kind
        self._make = {"fleet": fleet, "weights": weights}[kind]

    def put(self, uid: str, **metadata: Any) -> None:
        getattr(self._seen.store, f"put_{self._kind}")(self._make(uid=uid, **metadata))

    def remove(self, uid: str) -> None:
        getattr(self._seen.store, f"remove_{self._kind}")(self._make(uid=uid))

    @property
    def uid(self) -> str:
        """Of the one that counts."""
        store = self._seen.store
        (found,) = [store.fleet(KEY)] if self._kind == "fleet" else store.weights_of(KEY)
        return found.uid


class TestAnObjectThatIsRecreatedUnderItsName:
    """Events of two objects with one name are handled at the same time, in no sure order."""

    def test_the_end_of_the_old_one_does_not_take_the_new_one_away(self, named):
        named.put("old")
        named.put("new")
        named.remove("old")

        assert named.uid == "new"

    def test_a_late_deletion_of_the_old_one_does_not_hide_the_new_one(self, named):
        named.put("new")
        named.put("old", **GOING)

        assert named.uid == "new"

    def test_the_new_one_takes_the_place_of_one_that_goes(self, named):
        named.put("old", **GOING)
        named.put("new")

        assert named.uid == "new"

    def test_a_late_change_of_the_old_one_does_not_replace_the_new_one(self, named):
        """kopf handles each uid by itself."""
        named.put("new", resourceVersion="12")
        named.put("old", resourceVersion="9")

        assert named.uid == "new"

    def test_the_new_one_replaces_the_old_one(self, named):
        named.put("old", resourceVersion="9")
        named.put("new", resourceVersion="12")

        assert named.uid == "new"


def test_a_recreated_weightversion_of_another_fleet_wakes_both_fleets(seen):
    """The API server permits no other change of the fleet."""
    seen.store.put_weights(weights("1", uid="old"))
    seen.store.put_weights(weights("1", uid="new", fleet="other"))

    assert seen.store.weights_of(KEY) == ()
    assert len(seen.store.weights_of(("rl", "other"))) == 1
    assert seen.changes == [KEY, KEY, ("rl", "other")]


def test_weightversions_are_found_by_their_fleet_oldest_first(seen):
    seen.store.put_weights(weights(name="b", creationTimestamp="2026-01-03T00:00:00Z"))
    seen.store.put_weights(weights(name="c", creationTimestamp="2026-01-02T00:00:00Z"))
    seen.store.put_weights(weights(name="a", creationTimestamp="2026-01-03T00:00:00Z"))
    seen.store.put_weights(weights(name="other", fleet="other"))

    assert [w.name for w in seen.store.weights_of(KEY)] == ["c", "a", "b"]
    assert seen.store.weights_of(("elsewhere", "policy")) == ()


def test_weightversions_of_a_fleet_are_found_without_a_look_at_those_of_others(seen):
    def cost() -> int:
        with operator_calls() as calls:
            assert len(seen.store.weights_of(KEY)) == 1
        return calls[0]

    seen.store.put_weights(weights())
    alone = cost()
    for number in range(50):
        seen.store.put_weights(weights(name=f"other-{number}", fleet="other"))
    assert cost() == alone


def test_a_weightversion_is_read_with_its_time_of_creation(seen):
    seen.store.put_weights(weights("9"))
    (view,) = seen.store.weights_of(KEY)

    assert view.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (view.spec.version, view.generation) == ("9", 2)


@pytest.mark.parametrize("end", ["removed", "going"])
def test_a_deleted_weightversion_is_forgotten_and_its_fleet_reconciled(seen, end):
    seen.store.put_weights(weights())
    if end == "removed":
        seen.store.remove_weights(weights())
    else:
        seen.store.put_weights(weights(**GOING))

    assert seen.store.weights_of(KEY) == ()
    assert seen.changes == [KEY, KEY]


class TestObjectsOfAnotherRelease:
    """The API server holds the same schema: only a newer or an older CRD lets these in."""

    def test_an_unreadable_fleet_is_reported_and_the_last_one_stays(self, seen, caplog):
        seen.store.put_fleet(fleet(replicas=2))
        with caplog.at_level(logging.ERROR):
            seen.store.put_fleet(fleet(replicas=-1))

        record = seen.store.fleet(KEY)
        assert record.spec.replicas == 2
        assert record.unreadable.startswith("spec.replicas: ")
        assert "InferenceFleet rl/policy cannot be read" in caplog.text
        assert seen.changes == [KEY, KEY], "its condition is written"

    def test_a_fleet_that_could_never_be_read_is_kept_with_its_generation_and_why(self, seen):
        seen.store.put_fleet(fleet(replicas=-1, generation=7))
        record = seen.store.fleet(KEY)

        assert (record.uid, record.generation, record.spec) == ("u1", 7, None)
        assert record.unreadable.startswith("spec.replicas: ")

    def test_a_fleet_that_is_repaired_is_read_again(self, seen):
        seen.store.put_fleet(fleet(replicas=-1))
        seen.store.put_fleet(fleet(replicas=2))

        assert (seen.store.fleet(KEY).spec.replicas, seen.store.fleet(KEY).unreadable) == (2, "")

    def test_why_names_fields_and_never_their_values(self, seen):
        body = fleet()
        body["spec"]["engine"] = {"args": [{"token": "s3cret"}]}
        seen.store.put_fleet(body)

        assert "spec.engine.args.0" in seen.store.fleet(KEY).unreadable
        assert "s3cret" not in seen.store.fleet(KEY).unreadable

    def test_an_unreadable_weightversion_is_reported_and_the_last_one_stays(self, seen, caplog):
        seen.store.put_weights(weights("1"))
        with caplog.at_level(logging.ERROR):
            seen.store.put_weights(weights("not a label"))

        (view,) = seen.store.weights_of(KEY)
        assert view.spec.version == "1"
        assert view.unreadable.startswith("spec.version: ")
        assert "WeightVersion rl/policy cannot be read" in caplog.text

    def test_a_weightversion_that_goes_is_forgotten_even_if_it_cannot_be_read(self, seen):
        seen.store.put_weights(weights("1"))
        seen.store.put_weights(weights("not a label", **GOING))

        assert seen.store.weights_of(KEY) == ()

    def test_unknown_fields_are_ignored(self, seen):
        body = fleet()
        body["spec"]["colour"] = "red"
        seen.store.put_fleet(body)

        assert seen.store.fleet(KEY) is not None

    def test_a_source_that_is_too_long_once_filled_in_is_reported(self, seen, caplog):
        body = weights("9" * 63)
        body["spec"]["source"] = {
            "huggingFace": {"repo": "lab/policy", "revision": "r" * 80 + "{version}"}
        }
        with caplog.at_level(logging.ERROR):
            seen.store.put_weights(body)

        assert seen.store.weights_of(KEY) == ()
        (unread,) = seen.store.unread_of(KEY)
        assert (unread.uid, unread.generation, unread.adapter) == ("w-policy", 2, "")
        assert "cannot be read" in caplog.text
        assert seen.changes == [KEY]

    def test_a_path_that_is_too_long_once_filled_in_is_reported_and_the_last_spec_stays(self, seen):
        """Seen before the fix: the operator continued with generation 1 without a message."""
        seen.store.put_weights(weights("1"))
        body = weights("a" * 63, generation=3)
        body["spec"]["source"]["path"] = "/weights/" + "/".join(["{version}"] * 20)
        seen.store.put_weights(body)

        (view,) = seen.store.weights_of(KEY)
        assert (view.spec.version, view.generation) == ("1", 3)
        assert view.unreadable
        assert seen.changes == [KEY, KEY]


APPLIED = {"version": "7", "source": {"path": "/weights/7"}}
WHEN = "2026-01-01T00:00:00Z"
NEW_CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "InventedLater",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": WHEN,
}
ODD_STATUSES = [
    pytest.param({"conditions": [NEW_CONDITION]}, (), id="a reason that was invented later"),
    pytest.param({"conditions": [NEW_CONDITION | {"type": "Ripe"}]}, (), id="a condition that was"),
    pytest.param({"conditions": [{}]}, (), id="half a condition"),
    pytest.param(
        {"laggards": [{"pod": "policy-0"}]}, ("laggards[0] (pod policy-0)",), id="half a laggard"
    ),
    pytest.param({"conditions": "none", "laggards": 7}, (), id="other kinds of values"),
    pytest.param({"observedGeneration": "newest"}, (), id="a generation that is not a number"),
    pytest.param({"workers": {"serving": "all"}}, (), id="a count that is none"),
]


@pytest.mark.parametrize(("odd", "unread"), ODD_STATUSES)
def test_a_fleet_whose_status_another_release_wrote_is_worked_on(seen, odd, unread):
    """After a rollback of the operator; the readable part of it counts."""
    seen.store.put_fleet(fleet() | {"status": {"appliedVersion": "7", "applied": APPLIED} | odd})
    record = seen.store.fleet(KEY)

    assert seen.changes == [KEY]
    assert record is not None
    assert record.status.applied_version == "7"
    assert record.status.applied.source.path == "/weights/7"
    assert record.status.unread_parts == unread


@pytest.mark.parametrize(
    ("odd", "unread"),
    [
        *ODD_STATUSES,
        pytest.param({"phase": "Ripening"}, (), id="a phase that was invented later"),
        pytest.param(
            {"history": [{"version": "1", "result": "Skipped", "startedAt": WHEN}]},
            ("history[0] (version 1)",),
            id="a result that was",
        ),
        pytest.param({"startedAt": "yesterday"}, ("startedAt",), id="a time that is none"),
    ],
)
def test_a_weightversion_whose_status_another_release_wrote_steers_its_fleet(seen, odd, unread):
    status = {"appliedVersion": "7", "applied": APPLIED, "supersededVersions": 3} | odd
    seen.store.put_weights(weights("8") | {"status": status})
    (view,) = seen.store.weights_of(KEY)

    assert seen.changes == [KEY]
    assert view.spec.version == "8"
    assert view.status.applied_version == "7"
    assert view.status.superseded_versions == 3
    assert view.status.unread_parts == unread


def test_an_unreadable_status_is_read_as_far_as_each_field_of_it_can_be(seen):
    odd = {"applied": {"digest": "?"}, "appliedVersion": "7", "phase": "Ripening"}
    seen.store.put_weights(weights("8") | {"status": odd | {"conditions": [{}]}})
    (view,) = seen.store.weights_of(KEY)

    assert view.status.applied_version == "7"
    assert view.status.applied is None
    assert view.status.conditions == ()


def managed(*entries: tuple[str, str]) -> list[dict[str, Any]]:
    """Which manager owns which field of the spec."""
    return [{"manager": m, "fieldsV1": {"f:spec": {f"f:{name}": {}}}} for m, name in entries]


@pytest.mark.parametrize(
    ("entries", "writer"),
    [
        (managed(("gitops", "source"), ("trainer", "version")), "trainer"),
        (managed(("trainer", "version"), ("trainer", "version")), "trainer"),
        (managed(("gitops", "version"), ("trainer", "version")), ""),
        (managed(("gitops", "source")), ""),
        ([{"manager": "rlfleet-operator", "subresource": "status"}], ""),
        (None, ""),
    ],
)
def test_the_writer_of_the_version_is_the_manager_that_alone_owns_it(seen, entries, writer):
    seen.store.put_weights(weights(managedFields=entries))
    (view,) = seen.store.weights_of(KEY)

    assert view.requested_by == writer
