"""The objects around the pods: access to the workers, and the version that a restarting one loads."""

from __future__ import annotations

import base64

import pytest
from tests.support.builders import FLEET_UID, make_fleet, make_worker, target

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.manifests import children
from rlfleet_resources import names
from rlfleet_resources.source import WeightSource

FLEET = make_fleet(make_worker(0).serving("1"))


def made_of(fleet):
    return [
        children.service(fleet),
        children.headless_service(fleet),
        children.disruption_budget(fleet),
        children.applied_config_map(fleet, target("1")),
        children.admin_token_secret(fleet, "token"),
    ]


@pytest.mark.parametrize("child", made_of(FLEET), ids=lambda c: c["kind"])
def test_every_child_has_the_fleets_owner_and_labels(child):
    metadata = child["metadata"]

    assert metadata["namespace"] == "rl"
    assert metadata["labels"] == names.fleet_labels("policy")
    assert [o["uid"] for o in metadata["ownerReferences"]] == [FLEET_UID]


def test_children_have_distinct_names_and_kinds():
    keys = [(c["kind"], c["metadata"]["name"]) for c in made_of(FLEET)]

    assert len(set(keys)) == len(keys)


def test_clients_reach_ready_workers_outside_quarantine():
    spec = children.service(FLEET)["spec"]

    assert spec["selector"][names.LABEL_TRAFFIC] == names.TRAFFIC_ALLOWED
    assert "publishNotReadyAddresses" not in spec
    assert spec["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]


def service_of(**options) -> dict:
    return children.service(make_fleet(serving={"service": options}))


@pytest.mark.parametrize(
    "given",
    [
        {"type": "LoadBalancer"},
        {"type": "NodePort", "externalTrafficPolicy": "Local"},
        {"internalTrafficPolicy": "Local"},
        {"trafficDistribution": "PreferSameZone"},
        {"sessionAffinity": "ClientIP"},
        {"loadBalancerClass": "internal", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
    ],
)
def test_the_service_has_the_options_that_the_fleet_sets(given):
    assert service_of(**given)["spec"] == children.service(FLEET)["spec"] | given


def test_the_service_keeps_clients_for_the_time_that_the_fleet_sets():
    made = service_of(sessionAffinity="ClientIP", sessionAffinityTimeoutSeconds=60)["spec"]

    assert made["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 60}}


def test_labels_and_annotations_of_the_service_are_added_to_the_fleets():
    labels = {"team": "rl", names.LABEL_FLEET: "another"}
    made = service_of(labels=labels, annotations={"lb": "internal"})["metadata"]

    assert made["labels"] == {"team": "rl"} | names.fleet_labels("policy")
    assert made["annotations"] == {"lb": "internal"}
    assert "annotations" not in children.service(FLEET)["metadata"]


def test_trainers_find_every_worker_by_name():
    spec = children.headless_service(FLEET)["spec"]

    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert names.LABEL_TRAFFIC not in spec["selector"]
    assert [p["port"] for p in spec["ports"]] == [8000, 8081, 8082]


@pytest.mark.parametrize(
    ("update", "away"),
    [
        pytest.param({}, 1, id="1 by default"),
        pytest.param({"maxUnavailable": 3}, 3, id="as many as a template change may take"),
        pytest.param(
            {"maxUnavailable": 0, "maxSurge": 1},
            1,
            id="1 for a maximum of 0: an eviction cannot surge",
        ),
        pytest.param({"maxUnavailable": "30%"}, 1, id="a share of 5 is rounded down"),
        pytest.param({"maxUnavailable": "59%"}, 2, id="a larger number"),
        pytest.param(
            {"maxUnavailable": "10%", "maxSurge": 1}, 1, id="1 where the percentage rounds to 0"
        ),
    ],
)
def test_the_disruption_budget_limits_evictions(update, away):
    spec = children.disruption_budget(make_fleet(update=update, replicas=5))["spec"]

    assert spec["maxUnavailable"] == away
    assert spec["selector"]["matchLabels"] == names.fleet_labels("policy")


def test_workers_that_do_not_serve_may_be_evicted():
    budget = children.disruption_budget(FLEET)

    assert budget["apiVersion"] == "policy/v1"
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


class TestStartOfARestartedWorker:
    def test_a_restarted_worker_starts_on_the_applied_version(self):
        made = children.applied_config_map(FLEET, target("42"))

        assert made["data"] == {"version": "42", "path": "/weights/step_42"}

    def test_a_restarted_worker_starts_on_the_model_if_the_version_has_no_directory(self):
        source = WeightSource.model_validate({"huggingFace": {"repo": "lab/m"}})
        made = children.applied_config_map(FLEET, Checkpoint(version="42", source=source))

        assert made["data"] == {"version": "42"}


def test_the_token_is_in_a_secret():
    made = children.admin_token_secret(FLEET, "t0ken")

    assert made["kind"] == "Secret"
    assert made["stringData"] == {"token": "t0ken"}
    assert base64.b64encode(b"t0ken").decode() not in str(made)
