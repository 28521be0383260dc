"""Any `podOverlay`, and any spec, leads to a decision: a pod that keeps the operator's fields, or
`InvalidSpec`.

Hypothesis prints the seed of a run that fails (`--hypothesis-seed`).
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.builders import NOW, build_pod, make_fleet, make_worker

from fleet_operator.core.decision import Decision, decide
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import CreatePod
from rlfleet_resources import names
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType

IMAGE = "rlfleet/worker:1"
OWN_KEYS = ("args", "ports", "readinessProbe", "lifecycle")

# Words that the code reads, so that odd values reach it.
KEYS = st.sampled_from(
    (
        *("metadata", "spec", "labels", "annotations", "ownerReferences", "name", "namespace"),
        *("containers", "initContainers", "volumes", "env", "tolerations", "key", "mountPath"),
        *("volumeMounts", "value", "args", "ports", "hostname", "securityContext", "x"),
    )
)
TEXTS = st.sampled_from(
    ("", "worker", "tmp", "RLFLEET_ADMIN_PORT", "HOME", "node.kubernetes.io/unreachable", "a")
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
NAMED = st.fixed_dictionaries({"name": TEXTS | SCALARS}) | JSON
LISTS = st.lists(NAMED | st.fixed_dictionaries({"key": JSON}), max_size=3) | JSON
CONTAINER = st.fixed_dictionaries(
    {"name": st.just("worker") | TEXTS},
    optional=dict.fromkeys(("env", "volumeMounts", "args", "ports", "lifecycle"), LISTS),
)
POD_SPEC = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(CONTAINER | JSON, max_size=3) | JSON,
        "initContainers": LISTS,
        "volumes": LISTS,
        "tolerations": LISTS,
        "hostname": JSON,
        "securityContext": JSON,
    },
)
METADATA = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("labels", "annotations", "ownerReferences", "name"), JSON)
)
OVERLAYS = st.dictionaries(KEYS, JSON, max_size=4) | st.fixed_dictionaries(
    {}, optional={"metadata": METADATA | JSON, "spec": POD_SPEC | JSON}
)


def fleet_with(overlay: dict[str, Any]) -> FleetObserved:
    return make_fleet(make_worker(0).serving("base"), replicas=2, podOverlay=overlay)


def decision(overlay: dict[str, Any]) -> Decision:
    return decide(fleet_with(overlay), default_image=IMAGE, now=NOW + timedelta(seconds=5))


def check_that_it_is_a_pod_or_refused(overlay: dict[str, Any]) -> None:
    made = decision(overlay)
    assert made.defects == ()
    assert made.defects == ()
    created = [a.manifest for a in made.pod_actions if isinstance(a, CreatePod)]
    stalled = condition_of(made.fleet.conditions, ConditionType.STALLED)
    if stalled is not None:
        assert (stalled.reason, created) == (ConditionReason.INVALID_SPEC, [])
        return
    (pod,) = created
    json.dumps(pod)
    plain = build_pod(fleet_with({}), 1, IMAGE, revision=made.pods.revision)
    for key in ("name", "namespace", "ownerReferences"):
        assert pod["metadata"][key] == plain["metadata"][key]
    assert pod["metadata"]["labels"].items() >= plain["metadata"]["labels"].items()
    for key in ("hostname", "subdomain"):
        assert pod["spec"][key] == plain["spec"][key]
    assert all(isinstance(t, dict) for t in pod["spec"]["tolerations"])
    (worker,) = (c for c in pod["spec"]["containers"] if c["name"] == names.WORKER_CONTAINER)
    (own,) = plain["spec"]["containers"]
    for key in OWN_KEYS:
        assert worker[key] == own[key]
    ours = {v["name"]: v for v in own["env"] if v["name"].startswith("RLFLEET_")}
    assert {v["name"]: v for v in worker["env"] if v["name"] in ours} == ours


@settings(max_examples=400, print_blob=True)
@given(overlay=OVERLAYS)
def test_any_overlay_keeps_the_operators_fields_or_is_an_invalid_spec(overlay):
    check_that_it_is_a_pod_or_refused(overlay)


@pytest.mark.parametrize(
    "tolerations",
    [None, "gpu", {"key": "gpu"}, ["gpu"], [None], [{"key": {"a": 1}}], [{"key": ["gpu"]}], 3],
    ids=str,
)
def test_malformed_tolerations_are_an_invalid_spec(tolerations):
    made = decision({"spec": {"tolerations": tolerations}})

    stalled = condition_of(made.fleet.conditions, ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason is ConditionReason.INVALID_SPEC
    assert "spec.podOverlay.spec.tolerations" in stalled.message
    assert made.pod_actions == ()
