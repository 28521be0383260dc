"""What the runtime needs of the outside, as protocols; `adapters` implements them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet_operator.core.actions import WorkerCall
from fleet_worker.protocol import Epoch, Reason, Word, WorkerState

Json = dict[str, Any]


class Kube(Protocol):
    """The Kubernetes API in raw JSON. Paths are absolute, as in the API reference.

    Errors: those of `fleet_operator.errors`.
    """

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it is there already."""

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: afterwards our fields are exactly those of the body."""

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it still is the one with this uid; silent if it is gone."""

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream watch events until the server ends the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """Outcome of one question or call to a worker; never an exception, one bad pod is one outcome.

    Fields:
        state: what the worker said of itself, also when it refused.
        reason: why it refused or failed, maybe in a word of a newer release. With silence only
            `Unauthorized`: an unproven claim, worth a look at the token.
        silent: no answer that counts came; whether a call took effect is not known.
    """

    state: WorkerState | None = None
    reason: Reason | Word | None = None
    message: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """The worker that a question or a call is for.

    Fields:
        base_url: where it listens, as the pod's status has it; another pod may have the address now.
        token: the fleet's admin token; calls are signed with it, it is never sent.
        pod_uid: the pod that must be there.
        instance: the process that a call is for, as its last answer had it; empty if it never
            answered. Questions are for any process of the pod.
    """

    base_url: str
    token: str
    pod_uid: str
    instance: str = ""


class Workers(Protocol):
    """The workers' admin ports."""

    async def state(self, worker: Addressee) -> WorkerAnswer:
        """Ask a worker for its state."""

    async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
