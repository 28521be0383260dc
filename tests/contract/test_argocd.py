"""Argo CD's view of both kinds: the health script on statuses that the operator computes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.argocd import SCRIPT, health
from tests.support.builders import NOW, WorkerBuilder, make_fleet, make_weights, make_worker
from tests.support.kstatus import kstatus

from fleet_operator.core.decision import decide
from fleet_operator.core.pod_waits import Awaited, PodWait
from fleet_worker.protocol import Reason
from rlfleet_resources.weights_status import WeightsStatus

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGE = "image"
REVISION = decide(make_fleet(replicas=1), default_image=IMAGE, now=NOW).pods.revision
GATED = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")


def up(ordinal: int, version: str) -> WorkerBuilder:
    return make_worker(ordinal).serving(version).of_revision(REVISION)


def objects(*workers: WorkerBuilder, suspend: bool = False, **spec: Any) -> list[dict[str, Any]]:
    """The fleet and the WeightVersion of version 42, as the API server has them."""
    begun = WeightsStatus(desired_version="42", started_at=NOW - timedelta(seconds=9))
    spec_of = make_weights("42").spec.model_copy(update={"suspend": suspend})
    asked = make_weights("42", spec=spec_of, status=begun)
    made = decide(make_fleet(*workers, wants=asked, **spec), default_image=IMAGE, now=NOW)
    statuses = (made.fleet, made.weights[asked.uid])
    return [{"metadata": {"generation": 1}, "status": s.to_json()} for s in statuses]


SITUATIONS = [
    pytest.param(
        objects(up(0, "42"), up(1, "42")), ("Healthy", "Healthy"), "Current", id="all serve"
    ),
    pytest.param(
        objects(up(0, "41"), up(1, "41")),
        ("Progressing", "Progressing"),
        "InProgress",
        id="a rollout",
    ),
    pytest.param(
        objects(up(0, "42"), make_worker(1).not_running().awaiting(GATED).of_revision(REVISION)),
        ("Progressing", "Progressing"),
        "InProgress",
        id="a pod behind a gate",
    ),
    pytest.param(
        objects(*(up(n, "41").refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2))),
        ("Degraded", "Degraded"),
        "Failed",
        id="files that are not there",
    ),
    pytest.param(
        objects(up(0, "41"), suspend=True),
        ("Suspended", "Suspended"),
        "InProgress",
        id="held back",
    ),
    pytest.param(
        objects(replicas=0), ("Suspended", "Suspended"), "InProgress", id="scaled to nothing"
    ),
]


@pytest.mark.parametrize(("found", "healths", "by_kstatus"), SITUATIONS)
def test_every_situation_has_a_health(found, healths, by_kstatus):
    judged = health(found)

    assert tuple(t["status"] for t in judged) == healths
    assert all(t["message"] for t in judged)
    assert {kstatus(o) for o in found} == {by_kstatus}


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(None, id="no status"),
        pytest.param({"observedGeneration": -1}, id="as the CRD fills it in"),
        pytest.param(
            {
                "observedGeneration": 1,
                "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}],
            },
            id="of the generation before",
        ),
    ],
)
def test_an_object_that_the_operator_has_not_observed_is_progressing(status):
    found = {"metadata": {"generation": 2}} | ({"status": status} if status else {})

    assert health([found])[0]["status"] == "Progressing"


def test_the_message_begins_with_the_reason():
    (_, judged) = health(
        objects(*(up(n, "41").refused("42", Reason.SOURCE_NOT_FOUND) for n in range(2)))
    )

    assert judged["message"].startswith("SourceNotFound: ")


def test_the_config_map_has_the_script_for_both_kinds():
    data = yaml.safe_load((EXAMPLES / "argocd/argocd-cm.yaml").read_text())["data"]

    for kind in ("InferenceFleet", "WeightVersion"):
        assert data[f"resource.customizations.health.rlfleet.dev_{kind}"] == SCRIPT.read_text()


def test_the_fields_that_the_trainer_owns_are_the_same_everywhere():
    data = yaml.safe_load((EXAMPLES / "argocd/argocd-cm.yaml").read_text())["data"]
    application = yaml.safe_load((EXAMPLES / "argocd/application.yaml").read_text())["spec"]
    ignored = {i["kind"]: i for i in application["ignoreDifferences"]}
    text = data["resource.customizations.ignoreDifferences.rlfleet.dev_WeightVersion"]

    assert yaml.safe_load(text)["managedFieldsManagers"] == ["trainer"]
    assert ignored["WeightVersion"]["managedFieldsManagers"] == ["trainer"]
    assert "RespectIgnoreDifferences=true" in application["syncPolicy"]["syncOptions"]
