"""`python -m stack up | down`: the cluster of `make cluster`, with our images on it."""

from __future__ import annotations

import argparse
import contextlib
import sys

from devcluster import Cluster, DevclusterError
from stack.images import OPERATOR_IMAGE, WORKER_IMAGE, load_images, mounts
from stack.operator import NAMESPACE, RELEASE

CLUSTER_ID = "desk"
LEFT_BY_DEMO = "demo"


def up(nodes: int) -> None:
    """Start the cluster, or take the one that runs, and load today's images."""
    try:
        cluster = Cluster.attach(CLUSTER_ID)
    except DevclusterError:
        cluster = Cluster.start(cluster_id=CLUSTER_ID, nodes=nodes, mounts=mounts(), detach=True)
    load_images(cluster)
    print(f"""
A cluster is up, with {OPERATOR_IMAGE} and {WORKER_IMAGE} of this working tree. Use it with

    export KUBECONFIG={cluster.kubeconfig} PATH={cluster.kubectl_path.parent}:$PATH
    helm upgrade --install {RELEASE} charts/rlfleet -n {NAMESPACE} --create-namespace \\
      --set image.tag=dev,worker.image={WORKER_IMAGE}
    kubectl get ifl,wv,pods -A

and end it with `make cluster-down`.""")


def down() -> None:
    """End the cluster, and the one that a demo has left, if they run."""
    ended = 0
    for name in (CLUSTER_ID, LEFT_BY_DEMO):
        with contextlib.suppress(DevclusterError):
            Cluster.attach(name).down()
            ended += 1
    if not ended:
        print("no cluster was running", file=sys.stderr)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start the cluster and load the images")
    start.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    commands.add_parser("down", help="end it")
    parsed = parser.parse_args()
    if parsed.command == "up":
        up(parsed.nodes)
    else:
        down()


if __name__ == "__main__":
    main()
