"""If several plans ask for a call to one worker, the order of their precedence decides."""

from __future__ import annotations

from tests.support.builders import make_spec, make_worker, target

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import PutLora
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.precedence import called_only_by, one_call_per_worker

HOW = make_spec().rollout
ONE, TWO, THREE = (make_worker(n).paused("41").view() for n in range(3))


def lora(name: str) -> PutLora:
    return worker_calls.put_lora(ONE, name, target("7"), HOW)


LOAD = worker_calls.load(ONE, target("42"), HOW, reason="all are paused")
RENEWAL = worker_calls.pause(ONE, HOW, reason="the lease ends")
FENCE = worker_calls.fence_now(ONE, reason="it is late")
STAGE = worker_calls.stage(TWO, target("42"), HOW, reason="the goal is 42")
REMOVAL = worker_calls.remove_lora(THREE, "chat")


def test_a_fence_replaces_a_renewal_and_a_renewal_replaces_a_load():
    assert one_call_per_worker([LOAD, STAGE, RENEWAL]) == (RENEWAL, STAGE)
    assert one_call_per_worker([LOAD, RENEWAL, FENCE]) == (FENCE,)


def test_base_weights_come_before_adapters_in_their_order():
    assert one_call_per_worker([LOAD], [lora("chat")], [lora("sql")]) == (LOAD,)
    assert one_call_per_worker([], [lora("chat")], [lora("sql")]) == (lora("chat"),)


def test_workers_of_different_plans_each_get_their_call():
    assert one_call_per_worker([STAGE], [LOAD], [REMOVAL]) == (STAGE, LOAD, REMOVAL)


def test_a_claimed_worker_gets_only_the_calls_of_its_claim():
    assert called_only_by({"uid-0"}, [FENCE], [LOAD, STAGE]) == (STAGE, FENCE)
    assert called_only_by({"uid-0"}, [], [LOAD]) == ()


def test_a_quarantine_of_a_claimed_worker_stays():
    quarantine = Quarantine(pod_uid="uid-0", pod_name="policy-0", reason="silent")

    assert called_only_by({"uid-0"}, [FENCE], [quarantine, LOAD]) == (quarantine, FENCE)
