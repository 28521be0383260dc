"""InferencePools are created with their field, deleted without it, and report a missing CRD."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.builders import make_fleet
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.manifests import children, inference_pool, revisions
from fleet_operator.core.manifests.pods import owner_reference
from fleet_operator.errors import KindMissing, NotFound, Retryable
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.problems import problem_of
from rlfleet_resources.reasons import ConditionReason

PLAIN = make_fleet(replicas=1)
ASKED = make_fleet(
    replicas=1, serving={"inferencePool": {"endpointPickerRef": {"name": "policy-epp"}}}
)
PATH = "/apis/inference.networking.k8s.io/v1/namespaces/rl/inferencepools/policy"
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
PART = "InferencePool policy"


class Harness:
    """One leader after the other, with one cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(FLEET_PATH, {"metadata": {"name": "policy", "uid": PLAIN.uid}})
        self.next_leader()

    def next_leader(self) -> None:
        self.kube = self.cluster.client()
        self.children = KubeChildren(self.kube, Metrics())

    async def write(self, observed) -> bool:
        """Whether there was a write of the pool."""
        write = self.children.due(observed, None).get(PART)
        if write is None:
            return False
        await write()
        return True

    @property
    def pool(self):
        return self.cluster.objects.get(PATH)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def unknown_kind(verb: str, path: str) -> NotFound | None:
    """Answer as an API server without the CRD."""
    return NotFound(f"{verb} {path}: 404") if "inferencepools" in path else None


async def test_a_pool_selects_what_the_service_selects_and_no_worker_is_replaced_for_it(harness):
    await harness.write(ASKED)

    selected = harness.pool["spec"]["selector"]["matchLabels"]
    assert selected == children.service(ASKED)["spec"]["selector"]
    assert harness.pool["spec"]["targetPorts"] == [{"number": ASKED.spec.serving.port}]
    assert harness.pool["metadata"]["ownerReferences"] == [owner_reference(ASKED)]
    assert revisions.revision_of(ASKED) == revisions.revision_of(PLAIN)


async def test_a_pool_that_is_as_it_should_be_is_not_written_again(harness):
    await harness.write(ASKED)
    harness.kube.requests.clear()

    await harness.write(ASKED)
    harness.children.forget_written()
    await harness.write(ASKED)

    assert [verb for verb, path in harness.kube.requests if path == PATH] == ["GET"]


@pytest.mark.parametrize("leaders", [1, 2])
async def test_the_pool_goes_with_its_field_also_under_the_next_leader(harness, leaders):
    await harness.write(ASKED)
    if leaders == 2:
        harness.next_leader()

    await harness.write(PLAIN)
    assert harness.pool is None

    await harness.write(ASKED)
    assert harness.pool is not None, "and it can come back"


async def test_a_pool_of_another_owner_is_left_alone(harness):
    foreign = {
        "metadata": {"name": "policy", "ownerReferences": [{"controller": True, "uid": "x"}]}
    }
    harness.cluster.put(PATH, foreign)

    await harness.write(PLAIN)

    assert harness.pool is not None


async def test_a_fleet_without_a_pool_is_read_once(harness):
    harness.kube.refuses = unknown_kind
    await harness.write(PLAIN)
    harness.children.forget_written()

    assert not await harness.write(PLAIN)


async def test_a_failed_read_is_repeated(harness):
    await harness.write(ASKED)
    harness.next_leader()
    harness.kube.error = Retryable("503")
    with pytest.raises(Retryable):
        await harness.write(PLAIN)
    harness.kube.error = None

    await harness.write(PLAIN)

    assert harness.pool is None


async def test_a_missing_crd_is_a_problem_that_names_the_remedy(harness):
    harness.kube.refuses = unknown_kind

    with pytest.raises(KindMissing) as refused:
        await harness.write(ASKED)

    problem = problem_of(PART, refused.value)
    assert problem.reason is ConditionReason.KIND_NOT_INSTALLED
    assert "inference.networking.k8s.io/v1" in problem.message
    assert "remove spec.serving.inferencePool" in problem.message
    assert not problem.concerns_weights, "rollouts go on"
    harness.kube.refuses = lambda _verb, _path: None
    await harness.write(ASKED)
    assert harness.pool is not None, "the CRD was installed"


def test_another_port_of_the_picker_is_written():
    serving = {"inferencePool": {"endpointPickerRef": {"name": "epp", "port": 9100}}}
    pool = inference_pool.inference_pool(replace(make_fleet(serving=serving), name="other"))

    assert pool is not None
    assert pool["metadata"]["name"] == "other"
    assert pool["spec"]["endpointPickerRef"]["port"] == {"number": 9100}
