"""A fleet of real workers is scaled, changed, broken, upgraded, uninstalled and deleted."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import FLEET, WORKERS

import stack


def test_workers_run_with_the_least_rights(fleet):
    (pod, *_) = fleet.pods().values()
    name = pod["metadata"]["name"]
    look = "import os; print(os.getuid(), os.access('/', os.W_OK), os.path.exists('/var/run/secrets/kubernetes.io'))"
    inside = fleet.kubectl("exec", name, "--", "python3", "-c", look).stdout.split()

    assert inside == ["1000", "False", "False"]
    assert pod["spec"]["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_the_admin_port_wants_the_token(fleet):
    script = (
        "import urllib.request, urllib.error, sys\n"
        "try:\n"
        "    urllib.request.urlopen(sys.argv[1])\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code)\n"
    )
    (pod, *_) = fleet.pods().values()
    url = f"http://{pod['status']['podIP']}:8081/v1/worker/state"
    asked = fleet.cluster.exec(["python3", "-c", script, url])

    assert asked.stdout.strip() == "401"


@pytest.mark.long
def test_a_scaled_up_worker_joins_at_the_applied_version_and_one_leaves_when_scaled_down(fleet):
    applied = fleet.roll_out(fleet.next_step())["appliedVersion"]
    before = fleet.pods().keys()
    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS + 1}")
    fleet.wait_ready(f"ifl/{FLEET}")

    (joined,) = fleet.pods().keys() - before
    log = fleet.kubectl("logs", joined).stdout
    assert f"starting on {applied}" in log
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied

    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS}")
    fleet.eventually(lambda: len(fleet.pods()) == WORKERS, "one worker is gone", seconds=120)


def test_an_upgrade_of_the_chart_disturbs_no_worker(fleet):
    before = {n: p["metadata"]["uid"] for n, p in fleet.pods().items()}
    stack.install(fleet.cluster, "podAnnotations.upgrade=again")

    fleet.roll_out(fleet.next_step())

    assert {n: p["metadata"]["uid"] for n, p in fleet.pods().items()} == before


@pytest.mark.long
def test_a_fleet_keeps_serving_after_an_uninstall_and_a_new_install_adopts_it(fleet, tmp_path):
    stack.uninstall(fleet.cluster)

    samples = fleet.while_sampling(
        tmp_path / "replies.jsonl",
        lambda: fleet.cluster.kubectl(
            "-n",
            "rlfleet-system",
            "wait",
            "--for=delete",
            "--timeout=120s",
            "pod",
            "-l",
            "app.kubernetes.io/name=rlfleet-operator",
        ),
    )
    left = fleet.cluster.kubectl("get", "crd", "-o", "name").stdout.split()

    assert samples.lost == []
    assert "customresourcedefinition.apiextensions.k8s.io/inferencefleets.rlfleet.dev" in left
    assert len(fleet.pods()) == WORKERS
    assert fleet.cluster.kubectl("get", "clusterrole", "rlfleet", check=False).returncode != 0

    stack.install(fleet.cluster)
    fleet.roll_out(fleet.next_step())


@pytest.mark.long
def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing_behind(fleet):
    claim = "nothing-of-this-name"
    manifest = stack.fleet_manifest("broken", replicas=1)
    manifest["spec"]["progressDeadlineSeconds"] = 5
    (volume,) = manifest["spec"]["weights"]["volumes"]
    volume["persistentVolumeClaim"]["claimName"] = claim
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    stalled = fleet.eventually(
        lambda: fleet.condition("Stalled", "ifl/broken"), "Stalled", seconds=60
    )

    assert stalled["reason"] == "WorkersFailing"
    assert claim in stalled["message"]

    fleet.kubectl("delete", "ifl", "broken")
    kinds = "pods,services,secrets,configmaps"
    label = ("-l", "rlfleet.dev/fleet=broken")
    fleet.eventually(
        lambda: not fleet.kubectl("get", kinds, *label, "-o", "name").stdout.strip(),
        "everything of the fleet is collected",
        seconds=90,
    )
