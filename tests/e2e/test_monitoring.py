"""A real Prometheus scrapes what the chart's monitors name, on a cluster with real workers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import yaml
from tests.e2e.conftest import NAMESPACE, Fleet
from tests.support.discovery import Discovery
from tests.support.prometheus import Prometheus, filled_in, impatient, scrape_jobs
from tests.support.series import selectors

import stack
from chaos.processes import NoSuchProcessError, signal_worker, without_operator
from devcluster import Cluster
from stack.operator import CHART, RELEASE
from stack.operator import NAMESPACE as SYSTEM

pytestmark = pytest.mark.long

API = f"{RELEASE}-api"
HOLD_SECONDS = 3
WITHIN_SECONDS = 120
RULES = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
EXPRESSIONS = {
    (page["uid"], panel["title"], target["expr"])
    for page in (json.loads(f.read_text()) for f in (CHART / "files/dashboards").glob("*.json"))
    for panel in page["panels"]
    for target in panel.get("targets", ())
}
NEEDS_A_FAULT = {
    "Needs attention": "no object is stalled",
    "Calls that were not done": "every call was done",
    "Failed reconciles": "no reconcile failed",
    "Refused calls": "no worker refused a call",
    "Requests that failed": "every request was answered",
}
NEEDS_ADAPTERS = dict.fromkeys(
    (
        "Age of the applied version of LoRA adapters",
        "LoRA adapters by version",
        "Lag of LoRA adapters",
    ),
    "the fleet has no LoRA adapter",
)
NEEDS_A_ROLLOUT_UNDER_WAY = {
    "Time since the rollout began": "the last rollout is applied",
    "Time in the present phase": "the last rollout is applied",
}
EMPTY_BY_NATURE = NEEDS_A_FAULT | NEEDS_ADAPTERS | NEEDS_A_ROLLOUT_UNDER_WAY
"""Titles of panels that are empty on a healthy fleet whose rollouts have ended."""


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    stack.install(cluster, "api.enabled=true", "api.replicaCount=1", "metrics.fleetNames=true")
    monitors = [f"metrics.{kind}.enabled=true" for kind in ("serviceMonitor", "podMonitor")]
    chosen = [word for value in ("api.enabled=true", *monitors) for word in ("--set", value)]
    rendered = cluster.helm("template", RELEASE, str(CHART), "-n", SYSTEM, *chosen).stdout
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    folder = tmp_path_factory.mktemp("prometheus")
    discovery = Discovery(cluster, folder)
    made = (o for o in objects if o["kind"] in {"ServiceMonitor", "PodMonitor"})
    jobs = scrape_jobs(made, SYSTEM, discovery)
    started = Prometheus.in_cluster(cluster, folder, jobs, impatient(RULES, HOLD_SECONDS))
    yield started
    started.stop()
    discovery.stop()


@pytest.fixture(scope="module")
def token(shared_fleet: Fleet) -> str:
    """The token of an account that may read the fleet and change its WeightVersion."""
    kubectl, kinds = shared_fleet.kubectl, "inferencefleets.rlfleet.dev,weightversions.rlfleet.dev"
    kubectl("create", "serviceaccount", "watcher")
    kubectl("create", "role", "watcher", "--verb=get,patch", f"--resource={kinds}")
    account = f"--serviceaccount={NAMESPACE}:watcher"
    kubectl("create", "rolebinding", "watcher", "--role=watcher", account)
    return str(kubectl("create", "token", "watcher", "--audience=rlfleet").stdout.strip())


def use_the_rl_api(fleet: Fleet, token: str) -> set[int]:
    """Look at the fleet, and resume what is not suspended. Returns: the statuses."""
    port = fleet.cluster.forward(SYSTEM, f"service/{API}", 8090)
    root = f"http://127.0.0.1:{port}/fleets/{NAMESPACE}/{fleet.name}/v1/rl"
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=30) as client:
        looked = client.get(f"{root}/state")
        resumed = client.post(f"{root}/resume", json={})
    return {looked.status_code, resumed.status_code}


def fires(
    fleet: Fleet, prometheus: Prometheus, alert: str, within_seconds: float = WITHIN_SECONDS
) -> None:
    fleet.eventually(lambda: "firing" in prometheus.states(alert), f"{alert} fires", within_seconds)


def fire_together(fleet: Fleet, prometheus: Prometheus, alerts: tuple[str, ...]) -> None:
    """Wait until each has fired. One may have ended when another fires."""
    waiting = set(alerts)

    def all_have_fired() -> bool:
        waiting.difference_update({a for a in waiting if "firing" in prometheus.states(a)})
        return not waiting

    fleet.eventually(all_have_fired, f"each of {alerts} fires", WITHIN_SECONDS)


def resolves(
    fleet: Fleet, prometheus: Prometheus, alert: str, within_seconds: float = WITHIN_SECONDS
) -> None:
    fleet.eventually(lambda: not prometheus.states(alert), f"{alert} ends", within_seconds)


def test_every_expression_of_the_dashboards_returns_data(
    fleet: Fleet, prometheus: Prometheus, token: str, tmp_path: Path
) -> None:
    def publish() -> None:
        for _ in range(3):
            fleet.roll_out(fleet.next_step())

    def empty() -> set[str]:
        assert use_the_rl_api(fleet, token) == {200}
        asked = {(title, prometheus.ask(filled_in(e)) != []) for _, title, e in EXPRESSIONS}
        return {title for title, has_data in asked if not has_data}

    fleet.while_sampling(tmp_path / "replies.jsonl", publish)

    fleet.eventually(
        lambda: empty() <= EMPTY_BY_NATURE.keys(), f"data, not {empty()}", WITHIN_SECONDS
    )


def test_every_series_of_the_alerts_is_scraped(
    fleet: Fleet, prometheus: Prometheus, token: str
) -> None:
    use_the_rl_api(fleet, token)
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    wanted = {name for rule in rules for name, _ in selectors(rule["expr"])}
    # A counter of faults begins with the first fault.
    wanted -= {"rlfleet_reconcile_failures_total"}
    # Present during a rollout alone.
    wanted -= {"rlfleet_weightversion_rollout_start_timestamp_seconds"}

    fleet.eventually(lambda: all(prometheus.ask(name) for name in wanted), f"all of {wanted}")


def test_a_truncated_checkpoint_fires_its_alert_which_ends_with_the_next_version(
    fleet: Fleet, prometheus: Prometheus
) -> None:
    alert = "RlfleetRolloutStalled"
    step = fleet.next_step()
    file = fleet.folder(step) / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    assert prometheus.states(alert) == set()

    fleet.publish(str(step))
    fleet.eventually(lambda: prometheus.states(alert) == {"pending"}, "pending", WITHIN_SECONDS)
    fires(fleet, prometheus, alert)
    (firing,) = prometheus.ask(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
    assert firing["metric"]["reason"] == "CheckpointTruncated"
    assert firing["metric"]["weightversion"] == fleet.name

    fleet.roll_out(fleet.next_step())
    resolves(fleet, prometheus, alert)


def test_workers_that_hang_fire_the_alerts_of_their_fleet(
    fleet: Fleet, prometheus: Prometheus
) -> None:
    alerts = ("RlfleetFleetUnavailable", "RlfleetFleetStartSlow")
    pods = list(fleet.pods())

    for pod in pods:
        signal_worker(fleet, pod, "worker", "SIGSTOP")
    try:
        fire_together(fleet, prometheus, alerts)
    finally:
        for pod in pods:
            with suppress(NoSuchProcessError):  # the kubelet may have ended it
                signal_worker(fleet, pod, "worker", "SIGCONT")
    for alert in alerts:
        resolves(fleet, prometheus, alert)
    fleet.wait_whole()


def test_an_operator_that_is_stopped_fires_its_alert(fleet: Fleet, prometheus: Prometheus) -> None:
    with without_operator(fleet.cluster):
        fires(fleet, prometheus, "RlfleetNoLeader")
    resolves(fleet, prometheus, "RlfleetNoLeader")


def test_reviews_that_are_forbidden_fire_the_alerts_of_the_rl_api(
    fleet: Fleet, prometheus: Prometheus, token: str
) -> None:
    alerts = ("RlfleetApiCannotReviewTokens", "RlfleetApiFailing")
    binding = f"clusterrolebinding/{API}-reviews"
    found = json.loads(fleet.cluster.kubectl("get", binding, "-o", "json").stdout)
    found["metadata"] = {k: found["metadata"][k] for k in ("name", "labels")}

    def asked_until_firing() -> bool:
        use_the_rl_api(fleet, token)
        return all("firing" in prometheus.states(alert) for alert in alerts)

    fleet.cluster.kubectl("delete", binding)
    try:
        fleet.eventually(asked_until_firing, f"{alerts} fire", WITHIN_SECONDS)
    finally:
        fleet.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(found))
    for alert in alerts:
        resolves(fleet, prometheus, alert)


def test_no_panel_is_excused_that_does_not_exist() -> None:
    assert EMPTY_BY_NATURE.keys() <= {title for _, title, _ in EXPRESSIONS}
    assert not any(re.search(r"\$\w", filled_in(e)) for _, _, e in EXPRESSIONS)
