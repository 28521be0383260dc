"""Answers that are lost on their way: the work is done, and nobody hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chaos.fleet import Fleet
from devcluster.errors import NotRunningError

ADMIN_PORT = 8081
_TABLE = "lost_answers"
# Requests and acknowledgements pass; what carries words from the admin port does not.
_RULES = """
table inet {table} {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
        ip saddr {address} tcp sport {port} ip length > 100 drop
    }}
}}
"""


@contextmanager
def answers_lost(fleet: Fleet, pod: str) -> Iterator[None]:
    """Drop everything that a worker's admin port says, until the end of the block."""
    address = fleet.pods()[pod]["status"]["podIP"]
    rules = _RULES.format(table=_TABLE, address=address, port=ADMIN_PORT)
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
