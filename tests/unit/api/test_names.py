"""Names that derive from a fleet's name fit what Kubernetes takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.builders import make_fleet, target

from fleet_operator.api.fleet import MAX_REPLICAS
from fleet_operator.core.manifests.children import (
    admin_token_secret,
    applied_config_map,
    disruption_budget,
    headless_service,
    service,
)
from fleet_operator.core.manifests.inference_pool import inference_pool
from fleet_operator.core.manifests.router import router_children
from rlfleet_resources import names

CRDS = Path(__file__).parents[3] / "crds"

LONGEST = "a" + "b" * 44
"""The CRD takes names of up to 45 characters."""
SERVICE_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(names.pod_name(LONGEST, MAX_REPLICAS - 1), id="of a pod, which is a hostname"),
        pytest.param(names.headless_service_name(LONGEST), id="of the headless Service"),
        pytest.param(names.admin_token_secret_name(LONGEST), id="of the Secret"),
        pytest.param(names.applied_config_map_name(LONGEST), id="of the ConfigMap"),
        pytest.param(LONGEST, id="of the fleet, which is a Service's and a label's value"),
    ],
)
def test_the_longest_fleet_name_makes_valid_dns_labels(name):
    assert len(name) <= 63
    assert SERVICE_NAME.match(name)


def children(fleet: str) -> set[tuple[str, str]]:
    """Kind and name of everything that is made for a fleet of 20 workers."""
    serving = {"inferencePool": {"endpointPickerRef": {"name": "epp"}}}
    observed = replace(make_fleet(router={"image": "router:1"}, serving=serving), name=fleet)
    made = [
        service(observed),
        headless_service(observed),
        disruption_budget(observed),
        applied_config_map(observed, target("1")),
        admin_token_secret(observed, "t"),
        *router_children(observed),
    ]
    made += [pool for pool in [inference_pool(observed)] if pool is not None]
    pods = {("Pod", names.pod_name(fleet, ordinal)) for ordinal in range(20)}
    return {(m["kind"], m["metadata"]["name"]) for m in made} | pods


WORDS = ["a", "1", "0", "12", "workers", "applied", "admin", "token", "admin-token"]
FLEETS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(lambda w: "-".join(["a", *w]))


@given(FLEETS, FLEETS)
def test_children_of_two_fleets_never_share_a_name(one, other):
    assume(one != other)
    assume(not one.endswith(names.CHILD_SUFFIXES))
    assume(not other.endswith(names.CHILD_SUFFIXES))

    assert not children(one) & children(other)


def test_every_child_without_an_ordinal_ends_with_a_reserved_word():
    """So that a fleet's own name, which Services and others have, is never that of another's child."""
    others = {name for kind, name in children("a") if kind != "Pod"} - {"a"}

    assert {name.removeprefix("a") for name in others} == set(names.CHILD_SUFFIXES)


@pytest.mark.parametrize("suffix", names.CHILD_SUFFIXES)
def test_the_crd_refuses_a_fleet_with_the_name_of_a_child(suffix):
    crd = yaml.safe_load((CRDS / "inferencefleets.yaml").read_text())
    rules = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]

    assert any(f"!self.metadata.name.endsWith('{suffix}')" in rule["rule"] for rule in rules)


def test_the_selector_matches_the_labels():
    labels = names.fleet_labels("policy")

    assert all(
        labels[k] == v for k, v in (p.split("=") for p in names.fleet_selector("policy").split(","))
    )


@pytest.mark.parametrize(
    ("ordinal", "is_worker"), [(2 * MAX_REPLICAS - 1, True), (2 * MAX_REPLICAS, False)]
)
def test_a_pod_is_a_worker_only_with_an_ordinal_that_a_fleet_can_give(ordinal, is_worker):
    """A router has one address for each ordinal up to the highest. With one pod, a user had the operator make
    10^58 of them.
    """
    labels = names.fleet_labels("policy") | {names.LABEL_ORDINAL: str(ordinal)}
    found = names.worker_of({"name": names.pod_name("policy", ordinal), "labels": labels})

    assert found == (("policy", ordinal) if is_worker else None)


def test_the_endpoint_is_the_service_inside_the_cluster():
    assert names.endpoint_url("policy", "rl", 8000) == "http://policy.rl.svc:8000"
