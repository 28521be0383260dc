"""Protocols of the outside world as the RL API uses it.

`api_server.ApiServer` implements the API server, `admin_ports.AdminPorts` the workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from pydantic_core import from_json

from fleet_worker import protocol
from rlfleet.ports import Json, Objects

MAX_REPLY_BYTES = 64 * 1024
"""Largest answer of a worker to a trainer's call. The longest of ours, an engine's configuration, has 1 KiB."""


@dataclass(frozen=True, slots=True)
class Target:
    """A worker that can be called.

    Fields:
        url: URL of its admin port, by the pod's address. Another pod may have the address by now.
        processes: number of its processes that take part in a transfer of weights.
    """

    pod: str
    pod_uid: str
    url: str
    processes: int


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The outcome of a call to a worker.

    Fields:
        status: the HTTP status; 0 without a valid answer. The call may have had its effect.
        content: the answer, a JSON object of `MAX_REPLY_BYTES` at most. A tenant's image decides its fields.
        problem: why there is no valid answer.
    """

    status: int = 0
    content: bytes = field(default=b"", repr=False)
    problem: str = ""

    @property
    def body(self) -> Json | None:
        """The object in `content`; None without one. It may take 25 times the memory."""
        try:
            document = from_json(self.content, allow_inf_nan=False)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else None

    @property
    def is_good(self) -> bool:
        """Whether the worker has carried out the call."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class WorkerRequest:
    """A request to workers; the same object may go to all workers of a fleet.

    Fields:
        method: the HTTP method.
        path: with `?` and the query, if there is one.
        body: JSON, or empty.
        driver: the trainer that holds the worker's lease from now on.
    """

    method: str
    path: str
    body: bytes = field(repr=False)
    driver: str

    @cached_property
    def body_digest(self) -> str:
        """SHA-256 of the body in hex digits, which may be as long as the names of all tensors."""
        return protocol.body_digest(self.body)


class Workers(Protocol):
    """The admin ports of workers. Cancelling a call ends its connection; the worker continues its work."""

    async def send(self, target: Target, token: str, request: WorkerRequest) -> WorkerReply:
        """Send one signed call.

        Args:
            target: The worker.
            token: The fleet's admin token. It signs the call and is never sent.
            request: The call.
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
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: Json | None = None,
        *,
        accept: str = "application/json",
    ) -> Json:
        """Send any request. `path` begins at the root, as `/api/v1/namespaces/rl/pods`.

        `accept`: the form of the answer; the API server has several in JSON.
        """
        ...
