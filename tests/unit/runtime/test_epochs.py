"""Epochs grow with every goal, so that late calls can be distinguished. After a refusal as old, the term
of one fleet grows once the Lease was read."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.builders import make_worker

from fleet_operator.core.identity import WeightsId
from fleet_operator.runtime.epochs import MAX_AHEAD, Epochs, raise_terms
from fleet_worker.protocol import MAX_TERM, Epoch

pytestmark = pytest.mark.virtual_time

KEY, OTHER = ("rl", "policy"), ("rl", "other")


def goal_of(version: str, **adapters: str) -> dict[str, WeightsId]:
    return {uid: WeightsId(v) for uid, v in {"": version, **adapters}.items()}


def test_the_sequence_grows_with_every_new_goal_and_only_then():
    epochs = Epochs(KEY, lambda: 5)
    sequences = [
        epochs.for_step(goal_of(goal), admits=False).sequence for goal in ("1", "1", "2", "2", "1")
    ]

    assert sequences == [1, 1, 2, 2, 3]


def test_a_late_call_for_an_older_goal_of_an_adapter_has_an_older_epoch_too():
    epochs = Epochs(KEY, lambda: 5)
    steps = (goal_of("1"), goal_of("1", math="1"), goal_of("1", math="2"), goal_of("1"))

    assert [epochs.for_step(step, admits=False).sequence for step in steps] == [1, 2, 3, 4]


def test_the_step_after_one_that_admits_workers_has_a_newer_epoch():
    epochs = Epochs(KEY, lambda: 5)
    steps = (False, True, True, False, False)

    assert [epochs.for_step(goal_of("1"), admits=admits).sequence for admits in steps] == [
        1,
        1,
        2,
        3,
        3,
    ]


def test_another_run_is_a_new_goal_and_a_digest_that_becomes_known_is_not():
    epochs = Epochs(KEY, lambda: 5)
    goals = [
        WeightsId("3", "run-7"),
        WeightsId("3", "run-7", "sha256:7"),
        WeightsId("3", "run-8"),
        WeightsId("3", "run-8", "sha256:8"),
        WeightsId("3", "run-8", "sha256:9"),
    ]

    assert [epochs.for_step({"": goal}, admits=False).sequence for goal in goals] == [1, 1, 2, 2, 3]


def test_the_last_epoch_is_that_of_the_present_goal():
    epochs = Epochs(KEY, lambda: 5)
    assert epochs.last == Epoch(term=5, sequence=0)
    epochs.for_step(goal_of("1"), admits=False)
    assert epochs.last == Epoch(term=5, sequence=1)


def test_the_term_is_always_todays():
    terms = iter((5, 9))
    epochs = Epochs(KEY, lambda: next(terms))

    assert epochs.for_step(goal_of("1"), admits=False) < epochs.for_step(goal_of("1"), admits=False)


POD = make_worker(0).pod_view()
PEERS = [make_worker(n).pod_view() for n in (1, 2)]


class FakeLease:
    """Answers whether the Lease is ours."""

    def __init__(self) -> None:
        self.readings = 0
        self.ours: asyncio.Future[bool] | None = None

    async def confirm(self) -> bool:
        self.readings += 1
        self.ours = asyncio.get_running_loop().create_future()
        return await self.ours

    async def says(self, *, ours: bool) -> None:
        await asyncio.sleep(0.01)
        assert self.ours is not None
        self.ours.set_result(ours)
        await asyncio.sleep(0.01)


async def raising(lease: FakeLease) -> tuple[list[Epochs], asyncio.Task[None], list[object]]:
    """The epochs of two fleets, whose terms are raised. Returns: also the fleets that were reconciled again."""
    asked, again = asyncio.Event(), list[object]()
    fleets = [Epochs(key, lambda: 5, asked) for key in (KEY, OTHER)]
    task = asyncio.create_task(
        raise_terms(asked, lambda: fleets, lease.confirm, lambda key, _: again.append(key))
    )
    await asyncio.sleep(0)
    return fleets, task, again


async def test_a_refusal_raises_nothing_until_the_lease_was_read():
    lease = FakeLease()
    (epochs, _), task, again = await raising(lease)
    epochs.note_refusal(POD, Epoch(term=40, sequence=3))
    assert epochs.last.term == 5
    assert epochs.is_term_pending
    await lease.says(ours=True)
    assert epochs.last.term == 41
    assert not epochs.is_term_pending
    assert again == [KEY]
    task.cancel()


async def test_a_refusal_raises_the_term_of_its_own_fleet_only():
    lease = FakeLease()
    (epochs, other), task, _ = await raising(lease)
    epochs.note_refusal(POD, Epoch(term=5 + MAX_AHEAD, sequence=0))
    await lease.says(ours=True)
    assert epochs.last.term == 6 + MAX_AHEAD
    assert other.last.term == 5
    task.cancel()


async def test_where_another_leads_nothing_is_raised_and_nothing_is_called():
    lease = FakeLease()
    (epochs, _), task, again = await raising(lease)
    epochs.note_refusal(POD, Epoch(term=6, sequence=1))
    await lease.says(ours=False)
    assert epochs.last.term == 5
    assert epochs.is_term_pending
    assert again == []
    task.cancel()


async def test_refusals_of_many_workers_cost_one_reading():
    lease = FakeLease()
    (epochs, other), task, _ = await raising(lease)
    for term in (40, 44, 42):
        epochs.note_refusal(POD, Epoch(term=term, sequence=0))
        other.note_refusal(POD, Epoch(term=7, sequence=0))
    await lease.says(ours=True)
    assert (epochs.last.term, other.last.term) == (45, 8)
    assert lease.readings == 1
    task.cancel()


async def test_a_newer_refusal_while_the_lease_is_read_is_read_for_again():
    lease = FakeLease()
    (epochs, _other), task, _ = await raising(lease)
    epochs.note_refusal(POD, Epoch(term=40, sequence=0))
    await asyncio.sleep(0.01)
    epochs.note_refusal(POD, Epoch(term=50, sequence=0))
    await lease.says(ours=True)
    assert epochs.is_term_pending
    await lease.says(ours=True)
    assert epochs.last.term == 51
    assert lease.readings == 2
    task.cancel()


async def test_a_late_call_of_our_own_does_not_cause_a_read_of_the_lease():
    epochs = Epochs(KEY, lambda: 5)
    epochs.for_step(goal_of("1"), admits=False)
    late = epochs.for_step(goal_of("2"), admits=False)
    epochs.note_refusal(POD, late)
    assert not epochs.is_term_pending


@pytest.mark.parametrize("term", [6 + MAX_AHEAD, MAX_TERM - 1, MAX_TERM])
async def test_a_worker_far_beyond_the_lease_is_named_until_it_is_recreated(term):
    epochs = Epochs(KEY, lambda: 5)
    epochs.note_refusal(POD, Epoch(term=term, sequence=7))
    assert epochs.last.term == 5, "its peers and its successor are called as before"
    assert not epochs.is_term_pending
    assert epochs.beyond([POD]) == ["policy-0"]
    assert epochs.beyond([make_worker(0).restarted(1).pod_view()]) == []
    assert epochs.beyond([POD]) == []


def read_lease(epochs: Epochs) -> None:
    """The Lease, read after the refusals, names this process."""
    if epochs.refused is not None:
        epochs.raise_above(epochs.refused)


def test_one_worker_never_puts_its_peers_beyond_the_next_leader():
    """At every leader it reports the highest term that raises the fleet's. The peers obey what they are
    called with.
    """
    obeyed = Epoch(term=0, sequence=0)
    for term in range(1, 20):
        epochs = Epochs(KEY, lambda term=term: term)
        for reported in (
            obeyed.term,
            MAX_TERM - 1,
            *range(term + MAX_AHEAD - 3, term + MAX_AHEAD + 3),
        ):
            epochs.note_refusal(POD, Epoch(term=reported, sequence=0))
            read_lease(epochs)
        for peer in PEERS:
            epochs.note_refusal(peer, obeyed)
        read_lease(epochs)
        assert epochs.beyond([POD, *PEERS]) == ["policy-0"]
        obeyed = epochs.last


@pytest.mark.parametrize("term", [MAX_TERM - 1, MAX_TERM])
def test_a_term_stays_within_the_protocol_near_its_highest_one(term):
    epochs = Epochs(KEY, lambda: MAX_TERM - 10)
    epochs.note_refusal(POD, Epoch(term=term, sequence=0))
    read_lease(epochs)

    assert epochs.last.term == (MAX_TERM if term < MAX_TERM else MAX_TERM - 10)
