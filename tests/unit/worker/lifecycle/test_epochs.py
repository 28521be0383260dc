"""Epochs and leases."""

from __future__ import annotations

import pytest

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.authority import PauseLease, check_holder, newest
from fleet_worker.protocol import Epoch, PauseMode, Reason


def epoch(term: int, sequence: int) -> Epoch:
    return Epoch(term=term, sequence=sequence)


@pytest.mark.parametrize(
    ("seen", "call"),
    [
        pytest.param(None, epoch(0, 0), id="the first call is new"),
        pytest.param(epoch(1, 5), epoch(1, 5), id="the same epoch may call again"),
        pytest.param(epoch(1, 5), epoch(1, 6), id="the next target is newer"),
        pytest.param(epoch(1, 5), epoch(2, 0), id="a new leader begins at any sequence"),
    ],
)
def test_a_call_of_the_newest_epoch_is_accepted(seen: Epoch | None, call: Epoch) -> None:
    assert newest(seen, call) == call


LEASE = PauseLease(PauseMode.KEEP, "trainer", since=100.0, expires=130.0)


def test_the_remaining_time_of_a_lease_ends_at_zero() -> None:
    assert LEASE.remaining(110) == 20
    assert LEASE.remaining(200) == 0


def test_a_lease_expires_exactly_at_its_time() -> None:
    assert not LEASE.has_expired(129.999)
    assert LEASE.has_expired(130)


def test_a_renewal_never_shortens_a_lease() -> None:
    assert LEASE.renewed(120, 60).expires == 180
    assert LEASE.renewed(120, 1).expires == 130


def test_the_state_has_ages_instead_of_times_of_day() -> None:
    state = LEASE.as_state(110)

    assert (state.paused_seconds, state.lease_remaining_seconds) == (10, 20)
    assert (state.holder, state.mode) == ("trainer", PauseMode.KEEP)


def test_the_holder_may_call_again() -> None:
    check_holder(LEASE, "trainer", 110)


def test_without_a_running_lease_any_caller_may_drive() -> None:
    check_holder(None, "operator", 110)
    check_holder(LEASE, "operator", 131)


def test_another_driver_gets_the_holder_and_the_remaining_time() -> None:
    with pytest.raises(Refusal) as refused:
        check_holder(LEASE, "operator", 110)

    assert refused.value.reason is Reason.HELD_BY_ANOTHER
    assert "trainer" in refused.value.message
    assert refused.value.retry_after_seconds == 20
