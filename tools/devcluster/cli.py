"""The arguments of the command line. The commands themselves are in `commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from devcluster import commands
from devcluster.errors import DevclusterError
from devcluster.profiles import PROFILES

_DESCRIPTION = """\
A real Kubernetes (etcd, API server, controllers, scheduler, kubelet, kube-proxy, CoreDNS,
containerd, runc) in private namespaces of this Linux machine, without a container engine.
It starts in seconds and leaves nothing behind; its network has no link to the machine's.
"""
_EPILOG = """\
examples:
  up --detach                        start one to keep; prints how to use it
  exec -- curl http://app.default/   run a program where Service names resolve
  forward -n default service/app 80  reach a Service from the machine
  down                               end it

Programs and clusters live below $RLFLEET_CACHE (default: ~/.cache/rlfleet).
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command; the exit code is 1 for an error that was explained."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("devcluster: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m devcluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    adder = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    profile = argparse.ArgumentParser(add_help=False)
    profile.add_argument(
        "--profile",
        choices=PROFILES,
        default="node",
        help="api: control plane only, no pods; node: everything (default)",
    )
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("--id", default="dev", help="which cluster (default: dev)")

    def add(
        name: str, run: object, text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        command = adder.add_parser(name, help=text, description=text, parents=list(parents))
        command.set_defaults(run=run)
        return command

    add("preflight", commands.preflight, "Say whether a cluster can run here.", profile)
    add("build", commands.build, "Build the programs, once; `up` does it if need be.", profile)
    _add_up(add("up", commands.up, "Start a cluster.", one, profile))

    down = add("down", commands.down, "End a cluster and remove everything of it.", one)
    down.add_argument("--all", action="store_true", help="end all clusters of this cache folder")

    status = add("status", commands.status, "Show what runs.", one)
    status.add_argument("--json", action="store_true", help="for programs")

    kubeconfig = add("kubeconfig", commands.kubeconfig, "Print the kubeconfig's path.", one)
    kubeconfig.add_argument(
        "--shell",
        action="store_true",
        help="print `export` lines for KUBECONFIG and a PATH with the cluster's kubectl and helm",
    )

    run = add("exec", commands.execute, "Run a program inside a node's namespaces.", one)
    run.add_argument("--node", type=int, default=1, choices=(1, 2))
    run.add_argument("argv", nargs="+", metavar="-- CMD", help="the program and its arguments")

    _add_load_image(add("load-image", commands.load_image, "Load an image on every node.", one))

    forward = add("forward", commands.forward, "Reach a Service or a pod from the machine.", one)
    forward.add_argument("-n", "--namespace", default="default")
    forward.add_argument("target", help="service/NAME or pod/NAME")
    forward.add_argument("port", type=int, help="port of the Service or the pod")
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    up.add_argument(
        "--detach",
        action="store_true",
        help="keep it until `down`; otherwise it ends with this command (Ctrl-C)",
    )
    up.add_argument(
        "--mount",
        type=_pair(":"),
        action="append",
        default=[],
        metavar="SRC:DST",
        help="a folder of this machine that every container sees read-only at DST",
    )
    up.add_argument(
        "--gpus",
        type=int,
        default=0,
        metavar="N",
        help="how many nvidia.com/gpu each node claims to have; for the scheduler only",
    )


def _add_load_image(load: argparse.ArgumentParser) -> None:
    load.add_argument("name", nargs="?", help="such as example/app:dev")
    load.add_argument(
        "--archive", type=Path, help="a docker-archive or OCI archive instead of NAME and files"
    )
    load.add_argument(
        "--file",
        type=_pair("="),
        action="append",
        default=[],
        metavar="DST=SRC",
        help="a file or folder of this machine and where the image has it",
    )
    load.add_argument("--entrypoint", nargs="+", default=[], metavar="WORD")
    load.add_argument("--env", type=_pair("="), action="append", default=[], metavar="NAME=VALUE")
    load.add_argument("--user", default="1000:1000", help="UID:GID (default: 1000:1000)")


class _pair:  # noqa: N801 - argparse shows the name of the type in its errors
    """Two words around a separator."""

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def __call__(self, text: str) -> tuple[str, str]:
        first, found, second = text.partition(self._separator)
        if not (first and found and second):
            raise argparse.ArgumentTypeError(f"{text!r} has no {self._separator!r} in it")
        return first, second
