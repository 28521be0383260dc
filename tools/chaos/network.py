"""Answers that are lost on their way, and networks that are cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from chaos.fleet import Fleet
from chaos.processes import leader_pod, operator_addresses
from devcluster.errors import NotRunningError

ADMIN_PORT = 8081
_TABLE = "chaos"
# Requests and acknowledgements pass. Packets with data from the admin port do not.
_RULES = """
table inet {table} {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
        ip saddr {address} tcp sport {port} ip length > 100 drop
    }}
}}
"""
_NO_WORKERS = """
table inet {table} {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
        ip saddr {{ {addresses} }} tcp dport {port} drop
        ip daddr {{ {addresses} }} tcp sport {port} drop
    }}
}}
"""
# Before kube-proxy's translation: pods know the API server by the address of its Service.
_NO_API_SERVER = """
table inet {table} {{
    chain prerouting {{
        type filter hook prerouting priority raw; policy accept;
        ip saddr {{ {addresses} }} tcp dport 443 drop
    }}
}}
"""


@contextmanager
def answers_lost(fleet: Fleet, pod: str) -> Iterator[None]:
    """Drop everything that a worker's admin port says, until the end of the block."""
    address = fleet.pods()[pod]["status"]["podIP"]
    with _rules(fleet, _RULES.format(table=_TABLE, address=address, port=ADMIN_PORT)):
        yield


@contextmanager
def operators_without_workers(fleet: Fleet) -> Iterator[None]:
    """Cut all operators off from all workers, until the end of the block; both reach the API server."""
    addresses = _listed(operator_addresses(fleet.cluster).values())
    with _rules(fleet, _NO_WORKERS.format(table=_TABLE, addresses=addresses, port=ADMIN_PORT)):
        yield


@contextmanager
def leader_without_api_server(fleet: Fleet) -> Iterator[str]:
    """Cut the leading operator off from the API server, until the end of the block.

    It still reaches the workers, and the other operator reaches everything. Yields: its pod.
    """
    pod = leader_pod(fleet.cluster)
    addresses = _listed([operator_addresses(fleet.cluster)[pod]])
    with _rules(fleet, _NO_API_SERVER.format(table=_TABLE, addresses=addresses)):
        yield pod


def _listed(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses))


@contextmanager
def _rules(fleet: Fleet, rules: str) -> Iterator[None]:
    _on_all_nodes(fleet, ["nft", "-f", "-"], rules)
    try:
        yield
    finally:
        _on_all_nodes(fleet, ["nft", "delete", "table", "inet", _TABLE], None)


def _on_all_nodes(fleet: Fleet, command: list[str], stdin: str | None) -> None:
    for number in fleet.cluster.status()["nodes"]:
        try:
            fleet.cluster.exec(command, node=int(number), stdin=stdin)
        except NotRunningError:
            continue  # a node that a failure has taken
