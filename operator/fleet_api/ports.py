"""Protocols of the outside world as the RL API uses it.

`rlfleet.kube.AsyncKube` implements the API server, `admin_ports.AdminPorts` the workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rlfleet.ports import Json, Objects


@dataclass(frozen=True, slots=True)
class Target:
    """A worker that can be called.

    Fields:
        url: of its admin port, by the pod's address. Another pod may have the address by now.
        processes: that take part in a transfer of weights.
    """

    pod: str
    pod_uid: str
    url: str
    processes: int


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The outcome of a call to a worker.

    Fields:
        status: of HTTP; 0 without a valid answer. The call may have had its effect.
        body: what the worker has said, which a tenant's image decides.
        problem: why there is no valid answer.
    """

    status: int = 0
    body: Json | None = field(default=None, repr=False)
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the worker has followed."""
        return 200 <= self.status < 300


class Workers(Protocol):
    """The admin ports of workers. Cancelling a call ends its connection; the worker goes on."""

    async def send(
        self, target: Target, token: str, method: str, path: str, body: bytes, driver: str
    ) -> WorkerReply:
        """Send one signed call.

        Args:
            target: The worker.
            token: The fleet's admin token. It signs the call and is never sent.
            method: Of HTTP.
            path: With `?` and the query, if there is one.
            body: JSON, or empty.
            driver: The trainer that holds the worker's lease from now on.
        """
        ...

    async def close(self) -> None:
        """End the connections."""
        ...


class Cluster(Protocol):
    """The API server, with the RL API's own account.

    Errors of every call: those of `rlfleet.errors`.
    """

    def of(self, namespace: str) -> Objects:
        """The WeightVersions and fleets of a namespace."""
        ...

    async def call(
        self, method: str, path: str, params: dict[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Send any request. `path` begins at the root, as `/api/v1/namespaces/rl/pods`."""
        ...
