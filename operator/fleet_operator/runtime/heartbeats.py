"""Shows other releases which fleets this one drives: a Lease in each of their namespaces, which the leader renews.

The Lease of the leader's election does not serve. An operator with `watchNamespaces` may read Leases in its own
namespaces only, and a release that is removed takes the right to read its Lease along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf

from fleet_operator.errors import FleetError
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.problems import HEARTBEAT
from fleet_operator.runtime.session import FleetSession
from rlfleet_resources.names import heartbeat_name

HEARTBEAT_SECONDS = 30.0
LOOK_SECONDS = 5.0
"""How often the operator looks for namespaces without a recent heartbeat: new ones, and those that failed."""


def lease_path(namespace: str, operator: str) -> str:
    """The path of the heartbeat Lease of an operator in a namespace of its fleets."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{heartbeat_name(operator)}"


class Heartbeats:
    """The heartbeat Leases of this operator.

    `operator`: namespace and name of this operator's Lease.
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
        self._begun_at: dict[str, float] = {}
        """When the last renewal began; in the future while it is on its way, and in the past if it failed."""

    async def run(self) -> None:
        """Renew until cancelled. A namespace whose requests take long delays the Lease of no other one."""
        self._begun_at.clear()  # a run that ended has left none on its way
        async with asyncio.TaskGroup() as group:
            while True:
                due = self.due()
                for namespace, sessions in due.items():
                    group.create_task(self.renew(namespace, sessions))
                    await asyncio.sleep(LOOK_SECONDS / len(due))  # not all of them at one moment
                if not due:
                    await asyncio.sleep(LOOK_SECONDS)

    def due(self) -> dict[str, list[FleetSession]]:
        """The namespaces without a recent heartbeat, and without one that is on its way, with their fleets."""
        fleets: dict[str, list[FleetSession]] = {}
        for session in self._sessions:
            if session.uid and session.driver is None:
                fleets.setdefault(session.key[0], []).append(session)
        self._begun_at = {n: at for n, at in self._begun_at.items() if n in fleets}
        before = asyncio.get_running_loop().time() - HEARTBEAT_SECONDS
        return {n: of for n, of in fleets.items() if self._begun_at.get(n, -inf) <= before}

    async def renew(self, namespace: str, sessions: Iterable[FleetSession]) -> None:
        """Renew one Lease. A refusal is a problem of the fleets in that namespace."""
        now = asyncio.get_running_loop().time()
        self._begun_at[namespace] = inf
        error = await self._renew_one(namespace)
        self._begun_at[namespace] = now if error is None else -inf
        for session in sessions:
            session.problems.note(HEARTBEAT, error)

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
