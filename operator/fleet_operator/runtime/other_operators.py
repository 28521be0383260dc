"""Decides which release of the operator drives a fleet, if several watch the same namespaces.

Every fleet's status names the Lease whose holder drives it. A process with another Lease leaves the
fleet alone, and reports it, until that Lease is gone or was not renewed for a minute. Only the driving
operator writes statuses, so that two releases never overwrite each other.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from fleet_operator.core.events import NewEvent
from fleet_operator.errors import FleetError, NotFound
from fleet_operator.ports import Kube

TAKEOVER_SECONDS = 60.0
"""Four times the duration of a Lease: an upgrade of the other release takes less."""
POLL_SECONDS = 10.0
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LEASE = re.compile(rf"({_NAME})/({_NAME})")


@dataclass
class _Known:
    """A Lease as last read. `since`: when its resourceVersion changed. `polled_at`: when it was read."""

    version: str = ""
    since: float = 0.0
    polled_at: float = float("-inf")
    lives: bool = True


class OtherOperators:
    """Leases of other releases. Times are seconds of the event loop's clock."""

    def __init__(self, kube: Kube, own: str) -> None:
        self._kube = kube
        self._known: dict[str, _Known] = {}
        self.own = own
        """The Lease of this process, as `namespace/name`."""

    async def driver(self, recorded: str) -> str:
        """The other Lease whose holder drives a fleet; empty if this process may.

        `recorded`: the Lease that the fleet's status names.
        """
        if recorded in {"", self.own}:
            return ""
        found = _LEASE.fullmatch(recorded)
        if found is None:
            return ""  # not written by an operator
        known = self._known.setdefault(recorded, _Known())
        now = asyncio.get_running_loop().time()
        if now - known.polled_at >= POLL_SECONDS:
            known.polled_at = now
            await self._poll(known, namespace=found[1], name=found[3])
        return recorded if known.lives else ""

    async def _poll(self, known: _Known, *, namespace: str, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        now = asyncio.get_running_loop().time()
        try:
            version = (await self._kube.get(path))["metadata"]["resourceVersion"]
        except NotFound:
            version = "gone"
        except FleetError:
            return  # unknown: keep the last answer
        if version != known.version:
            known.version, known.since = version, now
        known.lives = now - known.since < TAKEOVER_SECONDS


def left_to(other: str, own: str, fleet: str) -> NewEvent:
    """The Event on a fleet that another release drives."""
    namespace, _, name = other.partition("/")
    return NewEvent(
        type="Warning",
        reason="DrivenByAnotherOperator",
        message=(
            f"the operator with Lease {own} leaves this fleet to the operator with Lease {other}. Give "
            "the two releases namespaces that do not overlap (watchNamespaces). If the other operator "
            f"is gone, this one takes over when Lease {name} in {namespace} was not renewed for a minute. "
            f"Without the right to get that Lease: kubectl patch inferencefleet {fleet} --subresource=status "
            """--type=merge -p '{"status":{"operator":null}}'"""
        ),
    )
