"""What the runtime needs of the outside, as protocols; `adapters` implements them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fleet_operator.core.actions import WorkerCall
from fleet_worker.protocol import Epoch, Reason, WorkerState

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
        reason: why it refused or failed; None on success or silence.
        silent: no answer came; whether a call took effect is not known.
    """

    state: WorkerState | None = None
    reason: Reason | None = None
    message: str = ""
    silent: bool = False


class Workers(Protocol):
    """The workers' admin ports."""

    async def state(self, base_url: str, token: str) -> WorkerAnswer:
        """Ask a worker for its state."""

    async def call(
        self, base_url: str, token: str, action: WorkerCall, epoch: Epoch
    ) -> WorkerAnswer:
        """Ask a worker to act, and wait for the end of it."""
