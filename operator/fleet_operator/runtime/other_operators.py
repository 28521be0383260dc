"""Decides which release of the operator drives a fleet, if several watch the same namespaces.

Every fleet's status names the operator that drives it, and this operator renews a heartbeat Lease in the fleet's
namespace. A process of another release leaves the fleet alone, and reports it, until that Lease was not renewed
for two minutes. A deleted Lease changes nothing: its operator may live, and makes it again. Only the driving
operator writes statuses, so that two releases never overwrite each other.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from fleet_operator.core.events import NewEvent
from fleet_operator.errors import FleetError, NotFound
from fleet_operator.ports import Kube
from fleet_operator.runtime.heartbeats import HEARTBEAT_SECONDS, lease_path
from fleet_operator.runtime.session import Driver
from rlfleet_resources.names import heartbeat_name

TAKEOVER_SECONDS = 4 * HEARTBEAT_SECONDS
"""An upgrade of the other release takes less."""
POLL_SECONDS = 10.0
UNKNOWN_SECONDS = 180.0
"""After this time without an answer about the other operator's heartbeat, the fleet reports it."""
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_LEASE = re.compile(rf"{_NAME}/{_NAME}")


@dataclass
class _Known:
    """A heartbeat as last read.

    Fields:
        since: when its resourceVersion changed, or was first asked for.
        polled_at: when it was read, or should have been.
        unread_since: since when each read has failed; None after one that did not.
        error: of the last read, if it failed.
    """

    since: float
    version: str = ""
    polled_at: float = float("-inf")
    lives: bool = True
    unread_since: float | None = None
    error: str = ""


class OtherOperators:
    """Operators of other releases. Times are seconds of the event loop's clock."""

    def __init__(self, kube: Kube, own: str) -> None:
        self._kube = kube
        self._known: dict[tuple[str, str], _Known] = {}
        self.own = own
        """The Lease of this process, as `namespace/name`."""

    async def driver(self, namespace: str, recorded: str) -> Driver | None:
        """The other operator that drives a fleet; None if this process may.

        Args:
            namespace: That of the fleet.
            recorded: The operator that the fleet's status names.
        """
        if recorded in {"", self.own} or not _LEASE.fullmatch(recorded):
            return None  # ours, or not written by an operator
        now = asyncio.get_running_loop().time()
        known = self._known.get((namespace, recorded))
        if known is None or not _is_asked_for(known, now):
            # It drove nothing here meanwhile. It names itself in a status before its next heartbeat.
            self._known = {
                key: each for key, each in self._known.items() if _is_asked_for(each, now)
            }
            known = self._known[namespace, recorded] = _Known(since=now)
        if now - known.polled_at >= POLL_SECONDS:
            known.polled_at = now
            await self._poll(known, lease_path(namespace, recorded))
        if not known.lives:
            return None
        since = known.unread_since
        is_unknown = since is not None and now - since >= UNKNOWN_SECONDS
        return Driver(recorded, known.error if is_unknown else "")

    async def _poll(self, known: _Known, path: str) -> None:
        now = asyncio.get_running_loop().time()
        try:
            version = (await self._kube.get(path))["metadata"]["resourceVersion"]
        except NotFound:
            version = known.version  # no renewal: its operator makes it again if it lives
        except FleetError as error:  # unknown: keep the last answer
            known.unread_since = now if known.unread_since is None else known.unread_since
            known.error = str(error)
            return
        known.unread_since = None
        if version != known.version:
            known.version, known.since = version, now
        known.lives = now - known.since < TAKEOVER_SECONDS


def left_to(other: str, own: str, namespace: str) -> NewEvent:
    """The Event on a fleet that another release drives. `namespace`: that of the fleet."""
    return NewEvent(
        type="Warning",
        reason="DrivenByAnotherOperator",
        message=(
            f"the operator with Lease {own} leaves this fleet to the operator with Lease {other}. Give "
            "the two releases namespaces that do not overlap (watchNamespaces). If the other operator "
            f"is gone, this one takes over when Lease {heartbeat_name(other)} in {namespace} was not renewed for "
            f"{TAKEOVER_SECONDS:.0f} s"
        ),
    )


def _is_asked_for(known: _Known, now: float) -> bool:
    return now - known.polled_at <= TAKEOVER_SECONDS
