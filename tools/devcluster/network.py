"""The network of a node, and the link between two nodes. Nothing leads to the machine's network."""

from __future__ import annotations

from pathlib import Path

from devcluster.processes import run
from devcluster.spec import (
    BRIDGE,
    SERVICE_RANGE,
    bridge_address,
    node_address,
    pod_range,
)

# Reverse-path filters and the like come from the machine's own settings, which may be strict.
_SYSCTLS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/arp_ignore": "0",
    "ipv4/conf/default/arp_ignore": "0",
}
_BRIDGE_SYSCTL = "bridge/bridge-nf-call-iptables"


def set_up_inside(node: int, *, pods: bool, reserved_port: int) -> None:
    """Give the calling process's network namespace its addresses and routes.

    Args:
        node: which node this is.
        pods: whether it gets a bridge for pods.
        reserved_port: kept free of outgoing connections. The API server's port is in
            their range. A client that retries while the server is down could otherwise get this
            port and connect to itself.
    """
    settings = _SYSCTLS | {"ipv4/ip_local_reserved_ports": str(reserved_port)}
    commands = [
        "link set lo up",
        f"address add {node_address(node)}/32 dev lo",
    ]
    if pods:
        # Services have no interface. Without a default route they need one of their own, or
        # connecting fails before kube-proxy's rules can rewrite the address.
        commands += [
            f"link add {BRIDGE} type bridge",
            f"address add {bridge_address(node)}/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            f"route add {SERVICE_RANGE} dev {BRIDGE}",
        ]
        # A reply from a pod to a pod of the same node must pass the rules as the request did.
        settings[_BRIDGE_SYSCTL] = "1"
    run(["ip", "-batch", "-"], stdin="\n".join(commands))
    for name, value in settings.items():
        Path("/proc/sys/net", name).write_text(value)


def link_nodes(first: int, second: int) -> None:
    """Join node 2 to node 1 by a pair of interfaces.

    Args:
        first: a process of the machine that lives in node 1's network namespace.
        second: the same for node 2.
    """
    pair = f"link add to-node-2 type veth peer name to-node-1 netns {second}"
    run(["nsenter", f"--net=/proc/{first}/ns/net", "ip", "-batch", "-"], stdin=pair)
    for process, here, there in ((first, 1, 2), (second, 2, 1)):
        device, gateway = f"to-node-{there}", node_address(there)
        commands = [
            f"link set {device} up",
            f"route add {gateway} dev {device} src {node_address(here)}",
            f"route add {pod_range(there)} via {gateway} dev {device} onlink",
        ]
        enter = ["nsenter", f"--net=/proc/{process}/ns/net", "ip", "-batch", "-"]
        run(enter, stdin="\n".join(commands))
