"""The operator refuses a source outside the weight roots without a call to workers."""

from __future__ import annotations

import pytest
from tests.support.builders import NOW, make_fleet, make_weights, make_worker

from fleet_operator.core.lora import as_seen_by_lora, plan_lora
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.rollout_plan import plan_rollout
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.source import WeightSource


def asks(path: str, *, version: str = "42", adapter: str = "") -> WeightsView:
    view = make_weights(version)
    update = {"source": WeightSource(path=path), "adapter": adapter}
    object.__setattr__(view, "spec", view.spec.model_copy(update=update))
    return view


def fleet(wanted: WeightsView, **spec):
    return make_fleet(make_worker(0).serving("41"), wants=wanted, **spec)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/other/step_{version}", id="another directory"),
        pytest.param("/weights-2/step_{version}", id="a directory whose name begins alike"),
        pytest.param("/weights.{version}", id="the version is part of the first directory"),
    ],
)
def test_a_source_outside_the_roots_is_refused(path):
    plan = plan_rollout(fleet(asks(path)), now=NOW)

    assert plan.step.problem is not None
    assert plan.step.problem.reason is ConditionReason.SOURCE_OUTSIDE_ROOTS
    assert not plan.step.problem.halt
    assert path.replace("{version}", "42") in plan.step.problem.message
    assert plan.step.goal.version == "41"
    assert [a.kind for a in plan.step.actions] == []


@pytest.mark.parametrize(
    ("path", "roots"),
    [
        pytest.param("/weights/step_{version}", ["/weights"], id="below the root"),
        pytest.param("/weights/{version}", ["/weights/42"], id="the root itself, when filled in"),
        pytest.param("/b/x", ["/a", "/b"], id="below the second root"),
        pytest.param("/models/base", ["/weights"], id="the model's own directory"),
    ],
)
def test_other_sources_are_staged(path, roots):
    volumes = [{"name": "w", "mountPath": "/weights", "persistentVolumeClaim": {"claimName": "c"}}]
    weights = {"roots": roots, "volumes": volumes}
    plan = plan_rollout(fleet(asks(path), weights=weights), now=NOW)

    assert plan.step.problem is None
    assert [a.kind for a in plan.step.actions] == ["stage"]


def test_an_adapter_outside_the_roots_is_refused():
    weights = asks("/other/lora_{version}", adapter="lora")
    observed = fleet(weights, adapters={"max": 1})
    plan = plan_lora(as_seen_by_lora(observed, "lora"), weights, now=NOW)

    assert plan.step.problem is not None
    assert plan.step.problem.reason is ConditionReason.SOURCE_OUTSIDE_ROOTS
    assert plan.step.actions == ()
