"""Names that derive from a fleet's name fit what Kubernetes takes."""

from __future__ import annotations

import re

import pytest

from fleet_operator.api import names
from fleet_operator.api.fleet import MAX_REPLICAS

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
def test_the_longest_name_still_is_a_dns_label(name):
    assert len(name) <= 63
    assert SERVICE_NAME.match(name)


def test_names_of_two_fleets_never_meet():
    """A fleet `a-1` beside a fleet `a`: only pods and Services are named by number or word."""
    made = (
        names.headless_service_name,
        names.admin_token_secret_name,
        names.applied_config_map_name,
    )

    assert not {f("a") for f in made} & {f("a-1") for f in made}


def test_the_selector_finds_what_the_labels_mark():
    labels = names.fleet_labels("policy")

    assert all(
        labels[k] == v for k, v in (p.split("=") for p in names.fleet_selector("policy").split(","))
    )


def test_the_endpoint_is_the_service_inside_the_cluster():
    assert names.endpoint_url("policy", "rl", 8000) == "http://policy.rl.svc:8000"
