"""A leader keeps what a former leader has recorded after the leader had read the status."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.identities import pin

from fleet_operator.core.foreign_status import with_record_of
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.pins import Pins
from rlfleet_resources.fleet_status import MAX_PINNED, AppliedWeights, FleetStatus, PinnedAdapter
from rlfleet_resources.unread import Unread, UnreadEntry

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def status(
    applied: str | None, pinned: Sequence[str] = (), *, digest: str = A, ready: int = 0
) -> FleetStatus:
    return FleetStatus(
        applied=None if applied is None else AppliedWeights(version=applied),
        applied_version=applied,
        pinned=tuple(pin(version, f"/weights/{version}", digest) for version in pinned),
        ready_replicas=ready,
    )


def named(found: FleetStatus) -> list[str]:
    return [e.version for e in found.pinned]


def test_weights_that_a_former_leader_applied_late_are_the_applied_ones():
    read = status("1", ["1"])
    kept = with_record_of(status("2", ["2", "1"]), ours=status("1", ["1"], ready=3), base=read)

    assert (kept.applied.version, kept.applied_version) == ("2", "2")
    assert named(kept) == ["2", "1"]
    assert kept.ready_replicas == 3


def test_weights_of_a_former_leader_do_not_replace_those_that_this_one_applied():
    read = status("1", ["1"])
    kept = with_record_of(status("2", ["2", "1"]), ours=status("3", ["3", "1"]), base=read)

    assert (kept.applied.version, kept.applied_version) == ("3", "3")
    assert named(kept) == ["3", "2", "1"]


def test_parts_that_cannot_be_read_are_those_of_the_stored_status():
    entry = UnreadEntry(within="pinned", number=0, raw={"version": "8", "digests": []})
    theirs = status("2", ["2", "1"]).model_copy(update={"unread": Unread(entries=(entry,))})
    read = status("1", ["1"])

    kept = with_record_of(theirs, ours=read, base=read)
    assert kept.unread == theirs.unread
    assert entry.raw in kept.to_json()["pinned"]


def test_a_rollback_by_a_former_leader_is_taken_over():
    read = status("2", ["2", "1"])
    kept = with_record_of(status("1", ["1", "2"]), ours=read, base=read)

    assert (kept.applied.version, named(kept)) == ("1", ["1", "2"])


def test_a_rollback_of_this_leader_keeps_its_place_in_the_order():
    read = status("2", ["2", "1"])
    kept = with_record_of(status("2", ["3", "2", "1"]), ours=status("1", ["1", "2"]), base=read)

    assert (kept.applied.version, named(kept)) == ("1", ["3", "1", "2"])


@pytest.mark.parametrize(
    "older",
    [status("1", ["1"]), status("1"), status(None), status("0", ["2", "1"])],
    ids=["older", "without pins", "empty", "not pinned"],
)
def test_a_status_that_a_former_leader_decided_on_an_older_one_undoes_nothing(older):
    read = status("2", ["2", "1"])
    kept = with_record_of(older, ours=read, base=read)

    assert (kept.applied.version, named(kept)) == ("2", ["2", "1"])


def test_pins_of_one_version_from_several_directories_stay():
    """As in External fleets, where a trainer names no run."""

    def from_runs(*runs: str) -> FleetStatus:
        return FleetStatus(pinned=tuple(pin("40", f"/{run}/step_40", A) for run in runs))

    read = from_runs("run-8", "run-7")
    kept = with_record_of(from_runs("run-7"), ours=from_runs("run-9", "run-8", "run-7"), base=read)

    paths = {str(each.source.path) for each in kept.pinned}
    assert paths == {f"/run-{n}/step_40" for n in (7, 8, 9)}


def test_a_model_without_a_pin_is_older_than_what_a_former_leader_applied():
    read = status("base")
    kept = with_record_of(status("1", ["1"]), ours=read, base=read)

    assert kept.applied.version == "1"


def test_the_stored_digest_of_a_version_is_the_first_one():
    read = status("1", ["1"])
    ours = status("1", ["2", "1"], digest=B)
    kept = with_record_of(status("1", ["2", "1"]), ours=ours, base=read)

    assert (named(kept), {e.digest for e in kept.pinned}) == (["2", "1"], {A})
    elsewhere = pin("2", "/elsewhere", B)
    ours = ours.model_copy(update={"pinned": (elsewhere, *ours.pinned[1:])})
    kept = with_record_of(status("1", ["2", "1"]), ours=ours, base=read)
    assert Pins(entries=kept.pinned).of(WeightsId("2")).digest == A


def test_the_pins_of_adapters_stay_too():
    def adapter(version: str) -> PinnedAdapter:
        return PinnedAdapter(adapter="lora", **dict(pin(version, "/weights/lora", A)))

    read = FleetStatus(pinned_adapters=(adapter("1"),))
    theirs = FleetStatus(pinned_adapters=(adapter("2"), adapter("1")))
    ours = FleetStatus(pinned_adapters=(adapter("3"), adapter("1")))
    kept = with_record_of(theirs, ours=ours, base=read)

    assert [e.version for e in kept.pinned_adapters] == ["3", "2", "1"]


def test_the_pins_of_both_stay_within_the_limit_of_the_status():
    known = [str(n) for n in range(MAX_PINNED, 0, -1)]
    read = status("1", known)
    ours = status("1", ["new", *known[:-2], "1"])
    kept = with_record_of(status("1", ["other", *known[:-2], "1"]), ours=ours, base=read)

    assert len(kept.pinned) == MAX_PINNED
    assert {"new", "other", "1"} <= set(named(kept))
