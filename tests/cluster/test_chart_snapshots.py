"""Compares what the real helm renders for 15 sets of values with recorded files.

The file of a set has the objects that differ from those of the defaults. After a change of the chart that is meant, record them again and read the difference:

    RLFLEET_RECORD=1 make pytest ARGS=tests/cluster/test_chart_snapshots.py
"""

from __future__ import annotations

import difflib
import os

import pytest
from tests.cluster.test_operator_chart import Rendered
from tests.support.recorded_chart import DEFAULTS, record, recorded, text

from devcluster import Cluster

LONG = {"CustomResourceDefinition"}
"""Kinds that other tests compare with their sources."""
SETS: dict[str, tuple[str, ...]] = {
    DEFAULTS: (),
    "one-operator": ("replicaCount=1",),
    "two-namespaces": ('watchNamespaces=["rl","eval"]',),
    "images-of-a-mirror": (
        'image={"registry":"mirror.example","digest":"sha256:' + 64 * "a" + '"}',
        'imagePullSecrets=[{"name":"mirror"}]',
        'worker={"image":"mirror.example/rlfleet/worker:0.1.0"}',
    ),
    "crds-of-the-platform": ("crds.enabled=false",),
    "roles-of-the-platform": (
        "rbac.create=false",
        "rbac.aggregate=false",
        'serviceAccount={"create":false,"name":"fleets"}',
        "automountServiceAccountToken=false",
        'extraVolumes=[{"name":"token","projected":{"sources":[{"serviceAccountToken":{"path":"token"}},{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"fieldPath":"metadata.namespace"}}]}}]}}]',
        'extraVolumeMounts=[{"name":"token","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","readOnly":true}]',
    ),
    "closed-ports": (
        "networkPolicy.enabled=true",
        'networkPolicy.namespaces=["rl"]',
        'networkPolicy.metricsFrom=[{"namespaceSelector":{}}]',
        'networkPolicy.routersFrom=[{"podSelector":{}}]',
    ),
    "monitored": (
        "metrics.serviceMonitor.enabled=true",
        "metrics.podMonitor.enabled=true",
        "metrics.prometheusRule.enabled=true",
        'metrics.networkPolicy={"enabled":true,"from":[{"namespaceSelector":{}}]}',
        'tracing.otlpEndpoint="http://collector:4318"',
    ),
    "collector": (
        'collectors=[{"namespace":"rl","namespaces":["eval"],"mountPath":"/weights","runAsUser":1000,"runAsGroup":0,"volume":{"persistentVolumeClaim":{"claimName":"weights"}}}]',
    ),
    "collector-of-a-store": (
        'collectors=[{"namespace":"rl","objectStore":{"roots":["s3://rl-weights/runs"],"secretName":"s3-keys-of-the-collector","endpoint":"https://minio.storage.svc:9000"},"serviceAccountAnnotations":{"eks.amazonaws.com/role-arn":"arn:aws:iam::1:role/c"}}]',
    ),
    "without-metrics": ("metrics.service.enabled=false",),
    "placed": (
        'nodeSelector={"pool":"system"}',
        'tolerations=[{"key":"system","operator":"Exists"}]',
        'priorityClassName="system-cluster-critical"',
        'topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]',
        "hostNetwork=true",
        "api.hostNetwork=true",
        "api.metricsPort=8081",
        "api.probePort=8083",
        'api.dnsPolicy="Default"',
        'api.dnsConfig={"options":[{"name":"ndots","value":"1"}]}',
        'affinity={"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"pool","operator":"Exists"}]}}]}}',
        "api.enabled=true",
        'api.topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"rack","whenUnsatisfiable":"ScheduleAnyway"}]',
    ),
    "rl-api": (
        "api.enabled=true",
        'api.externalFleets=["rl/policy"]',
        'api.keysSecret="keys"',
        'api.publicKeysSecret="public-keys"',
        'api.networkPolicy={"enabled":true,"from":[{"namespaceSelector":{}}]}',
        'api.networkPolicy.metricsFrom=[{"namespaceSelector":{}}]',
        'api.tls.secretName="certificate"',
        "metrics.serviceMonitor.enabled=true",
    ),
    "extended": (
        'extraArgs=["--log-level=DEBUG"]',
        'extraEnv=[{"name":"A","value":"b"}]',
        'extraVolumes=[{"name":"ca","configMap":{"name":"ca"}}]',
        'extraVolumeMounts=[{"name":"ca","mountPath":"/ca"}]',
        'extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ca"}}]',
        "api.enabled=true",
        'api.extraArgs=["--log-level=DEBUG"]',
        'api.extraEnv=[{"name":"A","value":"b"}]',
        'api.extraVolumes=[{"name":"ca","configMap":{"name":"ca"}}]',
        'api.extraVolumeMounts=[{"name":"ca","mountPath":"/ca"}]',
        'api.podLabels={"team":"rl"}',
        'api.podAnnotations={"a":"b"}',
        'api.strategy={"type":"Recreate"}',
        'api.affinity={"podAffinity":{}}',
    ),
    "renamed": (
        'fullnameOverride="fleets"',
        'namespaceOverride="eval"',
        "api.enabled=true",
        "api.serviceAccount.automountServiceAccountToken=false",
        'api.podDisruptionBudget.minAvailable="50%"',
        'commonLabels={"team":"rl"}',
        "podDisruptionBudget.enabled=false",
    ),
}


@pytest.mark.parametrize(("name", "values"), SETS.items(), ids=list(SETS))
def test_the_chart_renders_as_recorded(devcluster_api: Cluster, name: str, values) -> None:
    objects = [o for o in Rendered(devcluster_api, *values).objects if o["kind"] not in LONG]
    if os.environ.get("RLFLEET_RECORD"):
        record(name, objects)

    difference = difflib.unified_diff(
        text(recorded(name)), text(objects), "recorded", "rendered", lineterm="", n=2
    )
    assert list(difference) == []
