"""Workers that a queue held back before a template change: the change does not wait for them.

A pod of the change that a queue holds back counts as away, like every successor that does not come.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import IMAGE, NOW, WorkerBuilder, make_fleet, make_worker, texts_of
from tests.unit.core.test_fleet_plan import TODAY, old, up

from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.pod_waits import Awaited, PodWait

GATE = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")
NODE = PodWait(awaited=Awaited.NODE, reason="Unschedulable")


def waits(ordinal: int, revision: str = TODAY, wait: PodWait = GATE) -> WorkerBuilder:
    return make_worker(ordinal).of_revision(revision).not_running().awaiting(wait)


def plan(*workers: WorkerBuilder, held_back: int, **spec: object) -> FleetPlan:
    """`held_back`: workers that waited for a gate when the template was recorded."""
    observed = make_fleet(*workers, **spec)
    assert observed.template is not None
    template = replace(observed.template, held_back=held_back)
    observed = replace(observed, template=template)
    return plan_fleet(observed, default_image=IMAGE, holds_requests=False, now=NOW)


GATED = {
    "an idle out-of-date worker is replaced at once, a serving one drains": (
        [old(0), old(1), waits(2, "old")],
        1,
        ["BeginDrain policy-0", "DeletePod policy-2"],
    ),
    "its successor waits in its place": ([old(0), old(1), waits(2)], 1, ["BeginDrain policy-0"]),
    "the queue lets as many in as before": ([up(0), old(1), waits(2)], 1, ["BeginDrain policy-1"]),
    "a successor that the queue holds back is away": ([waits(0), old(1), waits(2)], 1, []),
    "a worker deleted for the change counts": ([old(0), old(1), waits(2)], 0, []),
    "a gate that is open counts no more": ([old(0), old(1), up(2)], 1, ["BeginDrain policy-0"]),
    "a pod without a node counts as away": ([old(0), old(1), waits(2, wait=NODE)], 1, []),
}


@pytest.mark.parametrize(("workers", "held_back", "done"), GATED.values(), ids=GATED)
def test_a_template_change_during_a_scheduling_gate(workers, held_back, done):
    made = plan(*workers, held_back=held_back, replicas=3, update={"maxUnavailable": 1})

    assert sorted(texts_of(made.actions)) == done
