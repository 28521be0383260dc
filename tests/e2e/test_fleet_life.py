"""A fleet of real workers is scaled, changed, broken, upgraded, uninstalled and deleted."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import FLEET, NAMESPACE, WORKERS

import stack


def pods(fleet) -> dict[str, dict]:
    selector = f"rlfleet.dev/fleet={FLEET}"
    items = json.loads(fleet.kubectl("get", "pods", "-l", selector, "-o", "json").stdout)["items"]
    return {p["metadata"]["name"]: p for p in items}


def test_workers_run_with_the_least_rights(fleet):
    (pod, *_) = pods(fleet).values()
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
    (pod, *_) = pods(fleet).values()
    url = f"http://{pod['status']['podIP']}:8081/v1/worker/state"
    asked = fleet.cluster.exec(["python3", "-c", script, url])

    assert asked.stdout.strip() == "401"


def test_a_scaled_up_worker_joins_at_the_applied_version_and_one_leaves_when_scaled_down(fleet):
    applied = fleet.roll_out(fleet.next_step())["appliedVersion"]
    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS + 1}")
    fleet.wait_ready(f"ifl/{FLEET}")

    log = fleet.kubectl("logs", f"{FLEET}-{WORKERS}").stdout
    assert f"starting on {applied}" in log
    assert fleet.get(f"ifl/{FLEET}")["status"]["appliedVersion"] == applied

    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS}")
    fleet.eventually(lambda: len(pods(fleet)) == WORKERS, "one worker is gone")
    assert pods(fleet).keys() <= {f"{FLEET}-{n}" for n in range(WORKERS + 1)}


def test_a_changed_template_replaces_one_worker_after_the_other(fleet):
    before = {n: p["metadata"]["uid"] for n, p in pods(fleet).items()}
    least_ready = WORKERS
    change = {"spec": {"podOverlay": {"metadata": {"annotations": {"example/change": "1"}}}}}
    fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", json.dumps(change))

    def replaced() -> bool:
        nonlocal least_ready
        now = pods(fleet)
        ready = sum(
            c["type"] == "Ready" and c["status"] == "True"
            for p in now.values()
            for c in p["status"].get("conditions", ())
        )
        least_ready = min(least_ready, ready)
        fresh = [n for n, p in now.items() if p["metadata"]["uid"] != before[n]]
        return len(fresh) == ready == WORKERS

    fleet.eventually(replaced, "all workers have the new template", seconds=180)

    assert least_ready >= WORKERS - 1
    assert all(p["metadata"]["annotations"]["example/change"] == "1" for p in pods(fleet).values())


def test_an_upgrade_of_the_chart_disturbs_no_worker(fleet):
    before = {n: p["metadata"]["uid"] for n, p in pods(fleet).items()}
    stack.install(fleet.cluster, "podAnnotations.upgrade=again")

    fleet.roll_out(fleet.next_step())

    assert {n: p["metadata"]["uid"] for n, p in pods(fleet).items()} == before


def test_after_uninstalling_the_fleet_goes_on_and_a_new_install_takes_it_up(fleet, tmp_path):
    stack.uninstall(fleet.cluster)

    samples = fleet.while_sampling(
        tmp_path / "replies.jsonl",
        lambda: fleet.cluster.kubectl(
            "-n",
            "rlfleet-system",
            "wait",
            "--for=delete",
            "pod",
            "-l",
            "app.kubernetes.io/name=rlfleet-operator",
        ),
    )
    left = fleet.cluster.kubectl("get", "crd", "-o", "name").stdout.split()

    assert samples.lost == []
    assert "customresourcedefinition.apiextensions.k8s.io/inferencefleets.rlfleet.dev" in left
    assert len(pods(fleet)) == WORKERS
    assert fleet.cluster.kubectl("get", "clusterrole", "rlfleet", check=False).returncode != 0

    stack.install(fleet.cluster)
    fleet.roll_out(fleet.next_step())


@pytest.mark.parametrize("claim", ["nothing-of-this-name"])
def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing_behind(fleet, claim):
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
    assert NAMESPACE in fleet.cluster.kubectl("get", "namespaces", "-o", "name").stdout
