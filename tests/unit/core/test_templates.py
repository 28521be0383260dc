"""Pods are made as the fleet's other pods were, whatever operator makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import NOW, make_fleet, make_worker, texts_of

from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.manifests import pods, revisions
from fleet_operator.core.manifests.templates import RecordedTemplate
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import CreatePod
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType


def recorded(observed: FleetObserved, *, image: str = "worker:1", **pod: Any) -> FleetObserved:
    """The fleet, whose template was recorded by release 0.1 with another default image."""
    template = pods.template_of(observed, image)
    # A copy: the simulator keeps the templates that it has built.
    changed = template | {"spec": template["spec"] | pod}
    made = RecordedTemplate(revision=revisions.revision_of(observed), pod=changed, release="0.1")
    return replace(observed, template=made, release="0.2")


def today(observed: FleetObserved) -> Decision:
    return decide(observed, default_image="worker:2", now=NOW)


def fleet(**spec: Any) -> FleetObserved:
    """Two of three workers serve with the template of this spec."""
    spec = {"replicas": 3} | spec
    revision = revisions.revision_of(make_fleet(**spec))
    workers = (make_worker(n).serving("1").of_revision(revision) for n in range(2))
    return make_fleet(*workers, **spec)


def test_a_new_pod_layout_replaces_no_worker_and_new_ones_keep_the_old_layout():
    (created,) = today(recorded(fleet(), shareProcessNamespace=True)).pod_actions

    assert isinstance(created, CreatePod)
    assert created.manifest["spec"]["shareProcessNamespace"] is True
    assert created.manifest["metadata"]["name"] == "policy-2"


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        pytest.param(recorded(fleet()), "image worker:1 -> worker:2", id="image"),
        pytest.param(
            recorded(fleet(), shareProcessNamespace=True),
            "image worker:1 -> worker:2, template of operator 0.1 -> 0.2",
            id="both",
        ),
        pytest.param(
            recorded(fleet(), image="worker:2", shareProcessNamespace=True),
            "template of operator 0.1 -> 0.2",
            id="template",
        ),
    ],
)
def test_the_status_lists_what_would_change(observed, words):
    condition = condition_of(today(observed).fleet.conditions, ConditionType.UPDATE_AVAILABLE)

    assert condition is not None
    assert (condition.status, condition.reason) == ("True", ConditionReason.NEW_TEMPLATE)
    assert condition.message.startswith(f"{words}. ")
    assert "spec.update.restartedAt" in condition.message


def test_a_fleet_whose_template_would_not_change_lists_nothing():
    conditions = today(recorded(fleet(), image="worker:2")).fleet.conditions

    assert condition_of(conditions, ConditionType.UPDATE_AVAILABLE) is None


def test_a_fleet_with_its_own_image_keeps_it():
    mine = fleet(engine={"image": "mine:1"})
    conditions = today(recorded(mine)).fleet.conditions

    assert condition_of(conditions, ConditionType.UPDATE_AVAILABLE) is None


def test_restarted_at_replaces_the_workers():
    before = fleet()
    asked = make_fleet(replicas=3, update={"restartedAt": "2026-03-01T12:00:00Z"})
    third = make_worker(2).serving("1").of_revision(revisions.revision_of(before)).view()
    decision = today(replace(before, spec=asked.spec, workers=(*before.workers, third)))

    assert decision.pods.outdated == 3
    assert texts_of(decision.pod_actions) == ["BeginDrain policy-0"]


def update_available(observed: FleetObserved) -> tuple[ConditionReason, str]:
    """Reason and message of the condition, by an operator whose default image is another one."""
    condition = condition_of(today(observed).fleet.conditions, ConditionType.UPDATE_AVAILABLE)
    assert condition is not None
    return condition.reason, condition.message


@pytest.mark.parametrize(
    ("update", "outdated", "remedy"),
    [
        ({"paused": True}, 1, "Set spec.update.paused to false to replace it"),
        ({"paused": True}, 2, "Set spec.update.paused to false to replace them"),
        ({"type": "OnDelete"}, 1, "Delete its pod to replace it"),
        ({"type": "OnDelete"}, 2, "Delete their pods to replace them"),
        ({"type": "OnDelete", "paused": True}, 1, "Delete its pod to replace it"),
    ],
)
def test_workers_that_an_update_may_not_replace_are_reported(update, outdated, remedy):
    old = (make_worker(n).serving("1").of_revision("old") for n in range(outdated))
    reason, message = update_available(recorded(make_fleet(*old, update=update), image="worker:2"))

    count = "1 worker has" if outdated == 1 else "2 workers have"
    assert reason == ConditionReason.UPDATE_HELD
    assert count in message
    assert message.endswith(remedy)


@pytest.mark.parametrize(
    ("update", "remedy"),
    [
        ({}, "restartedAt to a new value to replace all"),
        ({"paused": True}, "restartedAt to a new value and spec.update.paused to false to"),
        ({"type": "OnDelete"}, "restartedAt to a new value, and delete the pods, to"),
    ],
)
def test_the_remedy_replaces_workers_of_this_fleet(update, remedy):
    reason, message = update_available(recorded(fleet(update=update)))

    assert reason == ConditionReason.NEW_TEMPLATE
    assert message.startswith("image worker:1 -> worker:2. ")
    assert remedy in message


def test_a_held_update_still_reports_a_new_template():
    old = make_worker(0).serving("1").of_revision("old")
    reason, message = update_available(recorded(make_fleet(old, update={"type": "OnDelete"})))

    assert reason == ConditionReason.UPDATE_HELD
    assert message.startswith("1 worker has an older template of the spec. Delete its pod")
    assert "image worker:1 -> worker:2. " in message
    assert "spec.update.restartedAt" in message
