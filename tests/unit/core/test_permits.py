"""A worker gets its last wish that all permits allow, and every other wish has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import make_spec, make_transition, make_worker, target

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import PutLora, WorkerCall
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.permits import Situation, first_calls, permitted, why_not
from fleet_operator.core.pins import Pins
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.staging import Places
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.transition import named_in
from fleet_operator.core.unread_pins import UnreadPins
from rlfleet_resources.fleet_status import FleetStatus, PinnedWeights
from rlfleet_resources.weights_status import RolloutPhase

HOW = make_spec().rollout
DIGEST, OTHER = (f"sha256:{c * 64}" for c in "ab")
ONE, TWO, THREE = (make_worker(n).paused("41").view() for n in range(3))


def lora(name: str) -> PutLora:
    return worker_calls.put_lora(ONE, name, target("7"), HOW, reason="its goal")


LOAD = worker_calls.load(ONE, target("42"), HOW, reason="all are paused")
RENEWAL = worker_calls.pause(ONE, HOW, reason="the lease ends")
FENCE = worker_calls.fence_now(ONE, reason="it is late")
RESUME = worker_calls.resume(ONE, reason="it serves again")
APPLY = worker_calls.apply(ONE, target("42"), HOW, reason="it has staged")
STAGE = worker_calls.stage(TWO, target("42"), HOW, reason="the goal is 42")
REMOVAL = worker_calls.remove_lora(THREE, "chat", reason="")
QUARANTINE = Quarantine(pod_uid="uid-0", pod_name="policy-0", reason="silent")


def step(*wishes: WorkerCall | Quarantine, phase: RolloutPhase = RolloutPhase.LOADING) -> Step:
    return Step(goal=target("42"), phase=phase, actions=wishes, note="loading")


def pinned(digest: str, *, is_stored: bool = True) -> Situation:
    pin = PinnedWeights(version="42", digest=digest, source=target("42").source)
    stored = {("42", None): digest} if is_stored else {}
    return Situation(goal=target("42"), pins=Pins(entries=(pin,), stored=stored))


def test_a_fence_replaces_a_renewal_and_a_renewal_replaces_a_load():
    assert permitted(step(LOAD, STAGE, RENEWAL), Situation())[0].actions == (RENEWAL, STAGE)
    assert permitted(step(LOAD, RENEWAL, FENCE), Situation())[0].actions == (FENCE,)


def test_a_quarantine_replaces_every_call():
    assert permitted(step(QUARANTINE, RENEWAL), Situation())[0].actions == (QUARANTINE,)


def test_a_worker_gets_an_earlier_wish_if_the_last_one_is_not_permitted():
    situation = replace(pinned(DIGEST, is_stored=False), held={"uid-0"})
    taken, waits = permitted(step(RENEWAL, LOAD), situation)

    assert taken.actions == (RENEWAL,)
    assert waits


@pytest.mark.parametrize("held", [set(), {"uid-9"}], ids=["none is held", "others are held"])
def test_no_phase_of_pauses_begins_while_the_api_server_accepts_no_write(held):
    """Workers would be late without a call."""
    pausing = replace(step(RENEWAL), phase=RolloutPhase.PAUSING)
    taken, _ = permitted(pausing, replace(pinned(DIGEST, is_stored=False), held=held))

    assert (taken.actions, taken.phase) == ((), RolloutPhase.STAGING)


@pytest.mark.parametrize(
    ("call", "situation"),
    [
        pytest.param(APPLY, Situation(drain_begins=True), id="a drain begins"),
        pytest.param(
            RESUME, Situation(others={WeightsId("41"): "policy-9"}), id="another version may serve"
        ),
        pytest.param(
            RESUME,
            Situation(is_recorded=False, named=(target("40"),)),
            id="the operation is not stored",
        ),
        pytest.param(APPLY, Situation(is_recorded=False), id="nor that of a swap"),
        pytest.param(
            worker_calls.admit(ONE, reason="it has the applied version"),
            Situation(unaware=frozenset({"uid-0"})),
            id="it does not know how old its weights may be",
        ),
        pytest.param(RENEWAL, Situation(is_recorded=False), id="nor that of a pause"),
        pytest.param(LOAD, pinned(DIGEST, is_stored=False), id="the pin is not stored"),
        pytest.param(RENEWAL, pinned(DIGEST, is_stored=False), id="nor the pin of the goal"),
        pytest.param(
            LOAD, Situation(pins=Pins(unread=UnreadPins(nameless=True))), id="a pin is unreadable"
        ),
        pytest.param(
            STAGE, Situation(places=Places("one reads", frozenset())), id="no place is free"
        ),
    ],
)
def test_each_call_that_is_not_permitted_has_its_reason(call, situation):
    why = why_not(call, situation)

    assert why is not None
    taken, waits = permitted(step(call), situation)
    assert taken.actions == ()
    assert waits == why.until_stored
    assert (why.text in taken.waiting) == (not why.until_stored), "no status tells of its own write"


@pytest.mark.parametrize(
    ("call", "situation"),
    [
        pytest.param(STAGE, Situation(drain_begins=True, is_recorded=False), id="a read"),
        pytest.param(
            RESUME, Situation(others={WeightsId("40"): "policy-9"}), id="others open elsewhere"
        ),
        pytest.param(
            RESUME, Situation(is_recorded=False, named=(target("41"),)), id="back to the applied"
        ),
        pytest.param(
            RENEWAL, Situation(is_recorded=False, held={"uid-0"}), id="a pause is renewed"
        ),
        pytest.param(LOAD, pinned(DIGEST), id="the pin is stored"),
        pytest.param(FENCE, pinned(DIGEST, is_stored=False), id="a fence"),
    ],
)
def test_other_calls_are_permitted(call, situation):
    assert why_not(call, situation) is None


@pytest.mark.parametrize(("back", "opens"), [(False, True), (True, False)])
def test_a_worker_opens_at_the_weights_that_the_stored_status_goes_to(back, opens):
    stored = FleetStatus(transition=make_transition("41", "40", back=back))
    situation = Situation(is_recorded=False, named=named_in(stored))

    assert (why_not(RESUME, situation) is None) == opens


def test_weights_with_another_digest_than_their_pin_do_not_load():
    load = worker_calls.load(ONE, replace(target("42"), digest=OTHER), HOW, reason="")

    assert why_not(load, pinned(DIGEST)) is not None
    assert why_not(load, pinned(OTHER)) is None


def test_workers_are_not_late_to_pause_before_a_pause_is_permitted():
    pause = step(RENEWAL, phase=RolloutPhase.PAUSING)

    assert permitted(pause, Situation(is_recorded=False))[0].phase is RolloutPhase.STAGING


def test_base_weights_come_before_adapters_in_their_order():
    assert first_calls([LOAD], [lora("chat")], [lora("sql")]) == (LOAD,)
    assert first_calls([], [lora("chat")], [lora("sql")]) == (lora("chat"),)


def test_workers_of_different_plans_each_get_their_call():
    assert first_calls([STAGE], [LOAD], [REMOVAL]) == (STAGE, LOAD, REMOVAL)


def test_a_worker_that_leaves_gets_no_call_of_these_plans():
    assert first_calls([LOAD, STAGE], [lora("chat")], but={"uid-0"}) == (STAGE,)
