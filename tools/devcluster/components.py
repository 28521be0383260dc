"""The processes of a node: how each is started, after what, and when it counts as ready.

Pure: from the spec to records. The supervisor (pid 1 of the node) runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from devcluster.credentials import keys_folder, kubeconfig_of
from devcluster.programs import Programs
from devcluster.spec import (
    CONTAINERD_SOCKET,
    INSIDE,
    SERVICE_RANGE,
    Spec,
    node_address,
    node_name,
)

API_SERVER = "kube-apiserver"
_LOCAL_ETCD = "http://127.0.0.1:2379"


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """Ready when something accepts on this unix socket."""

    path: str


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when this address answers 200; the certificate is not checked."""

    url: str


@dataclass(frozen=True, slots=True)
class Component:
    """One process of a node."""

    name: str
    argv: tuple[str, ...]
    after: tuple[str, ...] = ()
    """Components of the same node that must be ready before this one starts."""
    ready: SocketProbe | HttpProbe | None = None
    """None: ready once started, or, for a task, once it ended well."""
    task: bool = False
    """Runs once and ends, instead of staying."""


def node_components(spec: Spec, node: int, api_port: int) -> tuple[Component, ...]:
    """The components of a node, in order of start."""
    programs = Programs(tuple(Path(folder) for folder in spec.programs))
    control_plane = _control_plane(spec, programs, api_port) if node == 1 else ()
    if spec.profile == "api":
        return control_plane
    return (*_containers(programs), *control_plane, *_node(spec, programs, node))


def _control_plane(spec: Spec, programs: Programs, api_port: int) -> tuple[Component, ...]:
    keys = keys_folder(spec.run)
    api_server = [
        str(programs.path("kube-apiserver")),
        f"--etcd-servers={_LOCAL_ETCD}",
        f"--secure-port={api_port}",
        f"--advertise-address={node_address(1)}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={keys}/server.crt",
        f"--tls-private-key-file={keys}/server.key",
        f"--kubelet-client-certificate={keys}/kubelet-client.crt",
        f"--kubelet-client-key={keys}/kubelet-client.key",
        # Node names cannot be resolved inside: logs and exec use addresses.
        "--kubelet-preferred-address-types=InternalIP",
        f"--token-auth-file={keys}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={keys}/service-accounts.key",
        f"--service-account-signing-key-file={keys}/service-accounts.key",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if spec.profile == "api":
        api_server.append("--endpoint-reconciler-type=none")
    controllers = [
        str(programs.path("kube-controller-manager")),
        f"--kubeconfig={kubeconfig_of(spec.run, 'kube-controller-manager')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys}/service-accounts.key",
        f"--root-ca-file={keys}/ca.crt",
        f"--flex-volume-plugin-dir={INSIDE}/volume-plugins",
        # Each controller asks for a token of its own at the start. At the default rate of 20 a
        # second that alone takes 4 s, during which no Deployment gets a pod.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        # A lost node is noticed in 12 s instead of 50: kubelets report every 2.5 s here.
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=12s",
    ]
    scheduler = [
        str(programs.path("kube-scheduler")),
        f"--kubeconfig={kubeconfig_of(spec.run, 'kube-scheduler')}",
        "--leader-elect=false",
    ]
    etcd = [
        str(programs.path("etcd")),
        f"--data-dir={INSIDE}/etcd",
        f"--listen-client-urls={_LOCAL_ETCD}",
        f"--advertise-client-urls={_LOCAL_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--logger=zap",
        "--log-level=warn",
    ]
    after = (API_SERVER,)
    return (
        Component("etcd", tuple(etcd), ready=HttpProbe(f"{_LOCAL_ETCD}/health")),
        Component(API_SERVER, tuple(api_server), ready=_healthy("https", api_port, "/readyz")),
        Component(
            "kube-controller-manager",
            tuple(controllers),
            after=after,
            ready=_healthy("https", 10257),
        ),
        Component("kube-scheduler", tuple(scheduler), after=after, ready=_healthy("https", 10259)),
    )


def _healthy(scheme: str, port: int, path: str = "/healthz") -> HttpProbe:
    return HttpProbe(f"{scheme}://127.0.0.1:{port}{path}")


def _containers(programs: Programs) -> tuple[Component, ...]:
    containerd = (str(programs.path("containerd")), "--config", f"{INSIDE}/etc/containerd.toml")
    ctr = (str(programs.path("ctr")), "-a", CONTAINERD_SOCKET, "-n", "k8s.io")
    pause = (*ctr, "images", "import", f"{INSIDE}/etc/pause.tar")
    return (
        Component("containerd", containerd, ready=SocketProbe(CONTAINERD_SOCKET)),
        Component("pause-image", pause, after=("containerd",), task=True),
    )


def _node(spec: Spec, programs: Programs, node: int) -> tuple[Component, ...]:
    name = node_name(node)
    first = (API_SERVER,) if node == 1 else ()
    kubelet = (
        str(programs.path("kubelet")),
        f"--config={INSIDE}/etc/kubelet.json",
        f"--kubeconfig={kubeconfig_of(spec.run, name)}",
        f"--root-dir={INSIDE}/kubelet",
        f"--cert-dir={INSIDE}/kubelet-pki",
        f"--hostname-override={name}",
        f"--node-ip={node_address(node)}",
    )
    proxy = (str(programs.path("kube-proxy")), f"--config={INSIDE}/etc/kube-proxy.json")
    dns = (str(programs.path("coredns")), "-conf", f"{INSIDE}/etc/Corefile", "-quiet")
    components = [
        Component("kubelet", kubelet, after=(*first, "pause-image"), ready=_healthy("http", 10248)),
        Component("kube-proxy", proxy, after=first, ready=_healthy("http", 10256)),
    ]
    if node == 1:
        ready = HttpProbe(f"http://{node_address(1)}:8181/ready")
        components.append(Component("coredns", dns, after=first, ready=ready))
    return tuple(components)
