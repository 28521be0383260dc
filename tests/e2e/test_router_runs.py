"""A fleet with `spec.router`: the real `vllm-router` in the operator's Deployment, with real workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import FLEET, WORKERS, Fleet
from tests.e2e.test_strategies import same_weights

import stack
from demo.sampler import TOKENS
from stack.offline import audit

pytestmark = pytest.mark.long
NAME = f"{FLEET}-router"
PORT = 8000
STARTS_SECONDS = 240
"""The imports of its launcher take half a minute on busy cores."""


@pytest.fixture(scope="module")
def routed(shared_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a router of the default policy; its clients sample through it."""
    fleet, what = shared_fleet, f"ifl/{FLEET}"
    fleet.wait_whole()
    stack.load_router(fleet.cluster)
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}}
    fleet.patch_fleet({"spec": {"router": {"image": stack.ROUTER_IMAGE, "resources": resources}}})
    available = ("wait", "--for=condition=RouterAvailable", what, f"--timeout={STARTS_SECONDS}s")
    waited = fleet.kubectl(*available, check=False)
    assert waited.returncode == 0, fleet.kubectl("describe", "pods", check=False).stdout[-4000:]
    assert fleet.get(what)["status"]["router"]["readyReplicas"] == 1
    url = f"http://127.0.0.1:{fleet.cluster.forward(fleet.namespace, f'service/{NAME}', PORT)}"
    yield dataclasses.replace(fleet, _url=url)
    fleet.patch_fleet({"spec": {"router": None, "rollout": {"canary": None}}})
    fleet.publish(str(fleet.next_step()), rollout=None)
    fleet.wait_whole()


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling", "Canary"])
def test_a_rollout_under_the_router_loses_nothing(
    fleet: Fleet, routed: Fleet, tmp_path: Path, strategy: str
) -> None:
    replies = tmp_path / "replies.jsonl"
    before = routed.applied()
    # A canary takes weights that answer as those before it.
    step = same_weights(routed, before) if strategy == "Canary" else routed.next_step()
    routed.patch_fleet({"spec": {"rollout": {"canary": {"maxRepetitionPercent": 100}}}})
    routed.publish(before, rollout={"strategy": strategy})
    routed.wait_whole()

    samples = routed.while_sampling(replies, lambda: routed.roll_out(step))

    assert samples.lost == []
    assert samples.retried == {}
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    assert routed.get(f"wv/{FLEET}")["status"]["workersApplied"] == f"{WORKERS}/{WORKERS}"
    judged = audit(replies, {v: routed.folder(int(v)) for v in (before, str(step))})
    assert judged.returncode == 0, judged.stdout + judged.stderr
