"""An API server takes what the chart renders, and Helm installs the chart as a part of another one.

The recorded snapshots are what the chart renders (`test_chart_snapshots.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.support import monitoring_crds
from tests.cluster.test_chart_snapshots import SETS
from tests.cluster.test_operator_chart import CHART, NAMESPACE
from tests.support.recorded_chart import recorded

from devcluster import Cluster
from devcluster.errors import CommandError

CHECKED = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
"""Words for kubectl: the API server checks each field, refuses unknown ones, and stores nothing."""


@pytest.fixture(scope="module")
def cluster(devcluster_api_possible: None) -> Iterator[Cluster]:
    """Without a release, and with the kinds of the Prometheus operator."""
    with Cluster.start(profile="api") as started:
        monitoring_crds.install(started)
        for namespace in (NAMESPACE, "rl", "eval"):
            started.kubectl("create", "namespace", namespace)
        yield started


@pytest.mark.parametrize("name", SETS)
def test_the_api_server_takes_every_object(cluster: Cluster, name: str) -> None:
    objects = recorded(name)

    taken = cluster.kubectl(*CHECKED, stdin=yaml.safe_dump_all(objects)).stdout
    assert len(taken.splitlines()) == len(objects)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "PrometheusRule"])
def test_a_field_that_a_kind_of_the_prometheus_operator_does_not_have_is_refused(
    cluster: Cluster, kind: str
) -> None:
    wrong = next(o for o in recorded("monitored") if o["kind"] == kind)
    wrong["spec"]["intervall"] = "30s"

    with pytest.raises(CommandError, match="intervall"):
        cluster.kubectl(*CHECKED, stdin=yaml.safe_dump(wrong))


def test_a_release_puts_its_objects_into_the_given_namespace(cluster: Cluster) -> None:
    values = ("crds.enabled=false", "namespaceOverride=rl", "api.enabled=true")
    chosen = [word for value in values for word in ("--set", value)]
    kinds = "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets"

    def found(namespace: str) -> set[str]:
        listed = cluster.kubectl("-n", namespace, "get", kinds, "-o", "name").stdout.split()
        return {line for line in listed if "rlfleet" in line}

    cluster.helm("install", "rlfleet", str(CHART), "-n", NAMESPACE, *chosen)
    assert {line.partition("/")[0].partition(".")[0] for line in found("rl")} == {
        *("deployment", "service", "serviceaccount", "role", "rolebinding", "poddisruptionbudget")
    }
    assert found(NAMESPACE) == set()
    lease = ("auth", "can-i", "update", "leases/rlfleet", "-n", "rl")
    allowed = cluster.kubectl(*lease, "--as=system:serviceaccount:rl:rlfleet", check=False)
    assert allowed.stdout.strip() == "yes"

    cluster.helm("uninstall", "rlfleet", "-n", NAMESPACE)
    assert found("rl") == set()


def test_another_chart_installs_it_and_leaves_it_out_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Helm hands `enabled` and `global` down; a strict schema must know both."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / "rlfleet").symlink_to(CHART)
    dependency = {"name": "rlfleet", "version": "*", "condition": "rlfleet.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    wanted = "deployments,services,serviceaccounts,servicemonitors,podmonitors,prometheusrules"

    def applied(verb: str, *values: str) -> set[str]:
        chosen = [word for value in ("global.region=eu", *values) for word in ("--set", value)]
        cluster.helm(verb, "platform", str(parent), "-n", "eval", *chosen)
        listed = cluster.kubectl("-n", "eval", "get", wanted, "-o", "name").stdout
        return {line for line in listed.split() if not line.endswith("/default")}

    monitors = [f"rlfleet.metrics.{m}.enabled=true" for m in ("serviceMonitor", "prometheusRule")]
    names = "rlfleet.metrics.fleetNames=true"
    made = applied("install", *monitors, names, "rlfleet.api.enabled=true")
    assert made == {
        "deployment.apps/platform-rlfleet",
        "deployment.apps/platform-rlfleet-api",
        "prometheusrule.monitoring.coreos.com/platform-rlfleet",
        "service/platform-rlfleet-api",
        "service/platform-rlfleet-api-metrics",
        "service/platform-rlfleet-metrics",
        "serviceaccount/platform-rlfleet",
        "serviceaccount/platform-rlfleet-api",
        "servicemonitor.monitoring.coreos.com/platform-rlfleet",
        "servicemonitor.monitoring.coreos.com/platform-rlfleet-api",
    }

    assert applied("upgrade", "rlfleet.enabled=false") == set()
    kept = cluster.kubectl("get", "crd", "inferencefleets.rlfleet.dev", "-o", "name").stdout
    assert (
        kept.strip() == "customresourcedefinition.apiextensions.k8s.io/inferencefleets.rlfleet.dev"
    )
