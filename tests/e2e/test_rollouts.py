"""New weights over a fleet of real workers, under load, and what is said when they are no good."""

from __future__ import annotations

import json
import os

import pytest
from tests.e2e.conftest import FLEET, WORKERS, Fleet
from tests.support.audit import audit_file

from demo.sampler import TOKENS
from stack.operator import NAMESPACE as SYSTEM


def test_five_versions_in_a_row_lose_no_request_and_every_token_is_labelled_truly(fleet, tmp_path):
    before = fleet.get(f"wv/{FLEET}")["status"]["appliedVersion"]
    steps = [fleet.next_step() for _ in range(5)]
    statuses = []
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: statuses.extend(map(fleet.roll_out, steps)))

    assert [s["appliedVersion"] for s in statuses] == [str(n) for n in steps]
    assert samples.lost == []
    assert samples.retried == {}
    assert samples.answered == samples.sent
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    assert samples.tokens.keys() <= {before, *map(str, steps)}
    versions = {str(n): fleet.folder(n) for n in [int(before), *steps]}
    audited = audit_file(replies, versions)
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_waiting_for_ready_right_after_a_patch_never_returns_early(fleet):
    for _ in range(3):
        step = fleet.next_step()
        assert fleet.roll_out(step)["appliedVersion"] == str(step)


def metric(fleet: Fleet, name: str) -> float:
    """A metric of the leader and its standby, added up."""
    chosen = ("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/name=rlfleet-operator")
    pods = json.loads(fleet.cluster.kubectl(*chosen, "-o", "json").stdout)["items"]
    lines = []
    for pod in pods:
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
        lines += fleet.cluster.kubectl("get", "--raw", path).stdout.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_rollout_costs_at_most_seven_writes_and_a_fleet_at_rest_none(fleet):
    before = metric(fleet, "rlfleet_api_writes_total")
    fleet.roll_out(fleet.next_step())
    after = metric(fleet, "rlfleet_api_writes_total")

    assert after - before <= 7  # one of them stores the digest before any worker loads it

    settled = metric(fleet, "rlfleet_api_writes_total")
    reconciles = metric(fleet, "rlfleet_reconcile_seconds_count")
    fleet.kubectl("annotate", "ifl", FLEET, f"look={settled}", "--overwrite")
    fleet.eventually(
        lambda: metric(fleet, "rlfleet_reconcile_seconds_count") > reconciles, "another look"
    )
    assert metric(fleet, "rlfleet_api_writes_total") == settled


def truncated(fleet: Fleet) -> dict[str, str]:
    step = fleet.next_step()
    file = fleet.folder(step) / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    return {"version": str(step)}


def other_architecture(fleet: Fleet) -> dict[str, str]:
    step = fleet.next_step()
    config = fleet.folder(step) / "config.json"
    config.write_text(config.read_text().replace("Qwen3ForCausalLM", "LlamaForCausalLM"))
    return {"version": str(step)}


BAD = [
    pytest.param(truncated, "CheckpointTruncated", id="truncated"),
    pytest.param(other_architecture, "CheckpointMismatch", id="another architecture"),
    pytest.param(
        lambda _: {"version": "wide", "source": {"path": "/weights/wider"}},
        "CheckpointMismatch",
        id="another width",
    ),
    pytest.param(
        lambda _: {"version": "deep", "source": {"path": "/weights/deeper"}},
        "CheckpointMismatch",
        id="another depth",
    ),
]


def test_a_source_outside_the_roots_is_refused_before_a_worker_is_asked(fleet):
    applied = fleet.get(f"wv/{FLEET}")["status"]["appliedVersion"]
    fleet.publish(version="out", source={"path": "/etc"})
    stalled = fleet.eventually(lambda: fleet.condition("Stalled"), "it is refused")

    assert stalled["reason"] == "SourceOutsideRoots"
    assert "/etc" in stalled["message"]
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied

    fleet.publish(str(fleet.next_step()), source={"path": "/weights/step_{version}"})
    fleet.wait_ready()
    assert fleet.condition("Stalled") is None


@pytest.mark.parametrize(("make", "reason"), BAD)
def test_a_bad_source_is_said_the_old_weights_serve_and_the_next_version_recovers(
    fleet, tmp_path, make, reason
):
    applied = fleet.get(f"wv/{FLEET}")["status"]["appliedVersion"]
    template = {"path": "/weights/step_{version}"}

    def publish_and_see() -> None:
        fleet.publish(**({"source": template} | make(fleet)))
        # Either worker may be the first to refuse.
        stalled = fleet.eventually(
            lambda: (
                (found := fleet.condition("Stalled")) and f"{FLEET}-0" in found["message"] and found
            ),
            f"Stalled names {FLEET}-0",
        )
        assert stalled["reason"] == reason

    samples = fleet.while_sampling(tmp_path / "replies.jsonl", publish_and_see)

    assert samples.tokens.keys() == {applied}
    assert samples.lost == []
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied
    described = fleet.kubectl("describe", "wv", FLEET).stdout
    assert reason in described.partition("Events:")[2]

    fleet.publish(str(fleet.next_step()), source=template)
    fleet.wait_ready()
    assert fleet.condition("Stalled") is None


def test_a_bad_source_that_is_repaired_is_taken_without_another_patch(fleet):
    step = fleet.next_step()
    file = fleet.folder(step) / "model.safetensors"
    aside = file.with_name("aside")
    file.rename(aside)
    fleet.publish(str(step))
    fleet.eventually(lambda: fleet.condition("Stalled"), "Stalled")

    aside.rename(file)

    fleet.wait_ready()
    assert fleet.get(f"wv/{FLEET}")["status"]["workersApplied"] == f"{WORKERS}/{WORKERS}"


def test_a_weight_version_without_a_fleet_says_so_and_is_taken_up_when_the_fleet_comes(fleet):
    manifest = {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "WeightVersion",
        "metadata": {"name": "lonely"},
        "spec": {
            "fleetRef": {"name": "nobody"},
            "version": "1",
            "source": {"path": "/weights/step_1"},
        },
    }
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    stalled = fleet.eventually(lambda: fleet.condition("Stalled", "wv/lonely"), "Stalled")
    fleet.kubectl("delete", "wv", "lonely")

    assert stalled["reason"] == "FleetNotFound"
    assert "nobody" in stalled["message"]


def test_a_second_weight_version_on_one_fleet_is_refused_and_changes_nothing(fleet):
    applied = fleet.get(f"wv/{FLEET}")["status"]["appliedVersion"]
    second = fleet.get(f"wv/{FLEET}")
    second["metadata"] = {"name": "second"}
    second["spec"]["version"] = "1"
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(second))

    stalled = fleet.eventually(lambda: fleet.condition("Stalled", "wv/second"), "Stalled")
    fleet.kubectl("delete", "wv", "second")

    assert stalled["reason"] == "SecondBaseVersion"
    assert FLEET in stalled["message"]
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied
