"""The configuration files of a node's components: pure functions from the spec to text.

Each unusual setting says what happens without it.
"""

from __future__ import annotations

import json
from pathlib import Path

from devcluster.credentials import keys_folder, kubeconfig_of
from devcluster.spec import (
    BRIDGE,
    CONTAINERD_SOCKET,
    DNS_ADDRESS,
    INSIDE,
    PAUSE_IMAGE,
    POD_RANGE,
    Spec,
    node_address,
    node_name,
    pod_range,
)

RESOLV_CONF = f"""\
nameserver {DNS_ADDRESS}
search default.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
"""


def kubelet(spec: Spec) -> str:
    """KubeletConfiguration."""
    never = dict.fromkeys(
        ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
    )
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(keys_folder(spec.run) / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(INSIDE / "etc/resolv.conf"),
            # Machines with the older control groups and with swap are fine here.
            "failCgroupV1": False,
            "failSwapOn": False,
            # The kubelet must not clean up the machine's disk: a full one would evict every pod.
            "evictionHard": never,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Without CAP_SYS_RESOURCE a process cannot lower its score.
            "oomScoreAdj": 0,
            # False breaks the kubelet's /stats/summary.
            "localStorageCapacityIsolation": True,
            # A patched number of GPUs shows up, and the loss of a node is noticed, within seconds.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 10,
            # Failing containers restart soon, since users and tests wait for them.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
            "featureGates": {"KubeletCrashLoopBackOffMax": True},
            "serializeImagePulls": False,
            "volumePluginDir": str(INSIDE / "volume-plugins"),
        },
        indent=2,
    )


def kube_proxy(spec: Spec, node: int) -> str:
    """KubeProxyConfiguration."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig_of(spec.run, "kube-proxy"))},
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": node_name(node),
            # By default a new Service refuses connections for a second.
            "nftables": {"minSyncPeriod": "50ms"},
            # The limits are the machine's and read-only in a network namespace.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        },
        indent=2,
    )


def containerd(plugins: Path, runc: Path) -> str:
    """The configuration of containerd; `plugins` is the folder with the network plugins."""
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE no container starts otherwise.
    return f"""\
version = 3
root = '{INSIDE}/containerd'
state = '/run/containerd'
imports = []
[grpc]
address = '{CONTAINERD_SOCKET}'
[plugins.'io.containerd.internal.v1.opt']
path = '{INSIDE}/opt'
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE_IMAGE}'
[{runtime}]
restrict_oom_score_adj = true
disable_apparmor = true
[{runtime}.cni]
bin_dirs = ['{plugins}']
conf_dir = '{INSIDE}/etc/cni'
use_internal_loopback = true
[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
base_runtime_spec = '{INSIDE}/etc/base-spec.json'
[{runtime}.containerd.runtimes.runc.options]
BinaryName = '{runc}'
"""


def pod_network(node: int) -> str:
    """The network of the node's pods: a bridge with addresses from the node's range."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": pod_range(node)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": "/run/cni",
                    },
                }
            ],
        },
        indent=2,
    )


def base_spec(default: str, mounts: tuple[tuple[str, str], ...]) -> str:
    """The base of every container: containerd's default with the machine's folders added.

    Args:
        default: the output of `ctr oci spec`.
        mounts: (source, destination).
    """
    spec = json.loads(default)
    # The default limits open files to 1024, which real nodes do not.
    spec["process"].pop("rlimits", None)
    for source, destination in mounts:
        spec["mounts"].append(
            {
                "source": source,
                "destination": destination,
                "type": "bind",
                "options": ["rbind", "ro"],
            }
        )
    return json.dumps(spec)


def dns(spec: Spec) -> str:
    """CoreDNS's Corefile. Names outside of the cluster are refused: the cluster has no outside network."""
    return f"""\
cluster.local in-addr.arpa {{
    bind {DNS_ADDRESS}
    errors
    ready {node_address(1)}:8181
    cache 2
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig_of(spec.run, "dns")}
        pods verified
        ttl 1
    }}
}}
"""
