"""Tries what a node needs of the kernel, inside of throw-away namespaces. Run by `preflight`.

    python -m devcluster.probe PROFILE SCRATCH-FOLDER

Prints a list of [missing part, remedy] as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from devcluster.errors import CommandError
from devcluster.linux import mount
from devcluster.processes import run

_NETLINK_NETFILTER = 12
_NFT_GET_GENERATION = (10 << 8) | 16
_NETLINK_ERROR = 2
_REQUEST = 1

Found = tuple[str, str]


def probe(profile: str, scratch: Path) -> Iterator[Found]:
    """Everything that is missing."""
    if profile == "node":
        yield from _overlay(scratch)
        yield from _interfaces()
        yield from _rules()


def _overlay(scratch: Path) -> Iterator[Found]:
    folders = [scratch / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir()
    lower, upper, work, merged = folders
    try:
        data = f"lowerdir={lower},upperdir={upper},workdir={work}"
        mount("overlay", merged, "overlay", data=data)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        yield (
            f"containers need overlay mounts, which {scratch.parent} cannot hold: {reason}",
            "load the module: modprobe overlay, or set RLFLEET_CACHE to a folder on ext4 or xfs",
        )


def _interfaces() -> Iterator[Found]:
    for kind, command in {
        "bridge": "link add probe0 type bridge",
        "veth": "link add probe1 type veth peer name probe2",
    }.items():
        try:
            run(["ip", "-batch", "-"], stdin=command)
        except CommandError:
            yield f"the kernel cannot make {kind} interfaces", f"load the module: modprobe {kind}"
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        yield (
            "the kernel does not filter bridged packets",
            "load the module: modprobe br_netfilter",
        )


def _rules() -> Iterator[Found]:
    """Ask the kernel for the generation of its nftables rules, as any client does first."""
    header = struct.pack("=IHHII", 20, _NFT_GET_GENERATION, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netlink:
            netlink.settimeout(5.0)
            netlink.send(header + b"\0\0\0\0")
            kind = struct.unpack_from("=IH", netlink.recv(4096))[1]
    except OSError:
        kind = _NETLINK_ERROR
    if kind == _NETLINK_ERROR:
        yield "the kernel has no nftables", "load the module: modprobe nf_tables"


if __name__ == "__main__":
    print(json.dumps(list(probe(sys.argv[1], Path(sys.argv[2])))))
