"""Shows other releases which fleets this one drives: a Lease in each of their namespaces, which the leader renews.

The Lease of the leader's election does not serve. An operator with `watchNamespaces` may read Leases in its own
namespaces only, and a release that is removed takes the right to read its Lease along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from fleet_operator.errors import FleetError
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.problems import HEARTBEAT
from fleet_operator.runtime.session import FleetSession
from rlfleet_resources.names import heartbeat_name

HEARTBEAT_SECONDS = 30.0
LOOK_SECONDS = 5.0
"""How often the operator looks for namespaces without a recent heartbeat: new ones, and those that failed."""
_AT_ONCE = 4


def lease_path(namespace: str, operator: str) -> str:
    """The path of the heartbeat Lease of an operator in a namespace of its fleets."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{heartbeat_name(operator)}"


class Heartbeats:
    """The heartbeat Leases of this operator.

    Args:
        kube: The API.
        operator: Namespace and name of this operator's Lease.
        sessions: The fleets that this operator knows.
    """

    def __init__(
        self,
        kube: Kube,
        operator: str,
        sessions: Iterable[FleetSession],
    ) -> None:
        self._kube = kube
        self._operator = operator
        self._sessions = sessions
        self._renewed_at: dict[str, float] = {}

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(LOOK_SECONDS)

    async def renew(self) -> None:
        """Renew the Leases that are due. A refusal is a problem of the fleets in that namespace."""
        fleets: dict[str, list[FleetSession]] = {}
        for session in self._sessions:
            if session.uid and session.driver is None:
                fleets.setdefault(session.key[0], []).append(session)
        self._renewed_at = {n: at for n, at in self._renewed_at.items() if n in fleets}
        clock = asyncio.get_running_loop().time
        places = asyncio.Semaphore(_AT_ONCE)

        async def beat(namespace: str) -> None:
            async with places:
                now = clock()
                error = await self._renew_one(namespace)
            if error is None:
                self._renewed_at[namespace] = now
            for session in fleets[namespace]:
                session.problems.note(HEARTBEAT, error)

        due_before = clock() - HEARTBEAT_SECONDS
        never = float("-inf")
        due = [n for n in fleets if self._renewed_at.get(n, never) <= due_before]
        await asyncio.gather(*map(beat, due))

    async def _renew_one(self, namespace: str) -> FleetError | None:
        try:
            await self._kube.apply(
                lease_path(namespace, self._operator), _lease(namespace, self._operator)
            )
        except FleetError as error:
            return error
        return None


def _lease(namespace: str, operator: str) -> Json:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": heartbeat_name(operator),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "rlfleet"},
        },
        "spec": {
            "holderIdentity": operator,
            "leaseDurationSeconds": int(2 * HEARTBEAT_SECONDS),
            "renewTime": now,
        },
    }
