"""Other releases of the operator that watch the same namespaces, and which of them drives a fleet.

Every fleet's status names the Lease whose holder drives it. A process with another Lease leaves such
a fleet alone, and reports it, until that Lease is gone or has not been renewed for a minute, by its
own clock. Statuses are written by the one that drives only, so that nothing is fought over.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from fleet_operator.core.transitions import Transition
from fleet_operator.errors import FleetError, NotFound
from fleet_operator.ports import Kube

TAKEOVER_SECONDS = 60.0
"""Four times as long as a Lease lasts: a release that is upgraded is not gone."""
LOOK_SECONDS = 10.0
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LEASE = re.compile(rf"({_NAME})/({_NAME})")


@dataclass
class _Known:
    """What is known of a Lease: its resourceVersion, since when it is that, and when we looked."""

    version: str = ""
    since: float = 0.0
    looked_at: float = float("-inf")
    lives: bool = True


class Rivals:
    """Leases of other releases. Times are seconds of the event loop's clock."""

    def __init__(self, kube: Kube, own: str) -> None:
        self._kube = kube
        self._known: dict[str, _Known] = {}
        self.own = own
        """Our Lease, as `namespace/name`."""

    async def driver(self, recorded: str) -> str:
        """The other Lease whose holder drives a fleet; empty if this process may.

        `recorded`: what the fleet's status names.
        """
        if recorded in {"", self.own}:
            return ""
        found = _LEASE.fullmatch(recorded)
        if found is None:
            return ""  # no operator has written this
        known = self._known.setdefault(recorded, _Known())
        now = asyncio.get_running_loop().time()
        if now - known.looked_at >= LOOK_SECONDS:
            known.looked_at = now
            await self._look(known, namespace=found[1], name=found[3])
        return recorded if known.lives else ""

    async def _look(self, known: _Known, *, namespace: str, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        now = asyncio.get_running_loop().time()
        try:
            version = (await self._kube.get(path))["metadata"]["resourceVersion"]
        except NotFound:
            version = "gone"
        except FleetError:
            return  # not known: what it was
        if version != known.version:
            known.version, known.since = version, now
        known.lives = now - known.since < TAKEOVER_SECONDS


def left_to(other: str, own: str, fleet: str) -> Transition:
    """The Event on a fleet that another release drives."""
    namespace, _, name = other.partition("/")
    return Transition(
        type="Warning",
        reason="DrivenByAnotherOperator",
        message=(
            f"the operator with Lease {own} leaves this fleet to the one with Lease {other}. Let their "
            "namespaces not overlap (watchNamespaces). If the other one is gone, this one takes over a "
            f"minute after it has seen that Lease {name} in {namespace} is not renewed; it needs the "
            f"right to get it, or: kubectl patch inferencefleet {fleet} --subresource=status "
            """--type=merge -p '{"status":{"operator":null}}'"""
        ),
    )
