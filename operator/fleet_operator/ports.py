"""Protocols of the outside world as the runtime uses it. The modules in `clients` implement them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet_operator.core.actions import WorkerCall
from fleet_worker.protocol import Epoch, Reason, WantedRequest, Word, WorkerState
from rlfleet_resources import names

Json = dict[str, Any]
UNREAD_BYTES = f"{names.GROUP}/unread-bytes"
"""The key of the size of an object of which parts were left out. No object of the API has it."""
SPEC_BYTES = 64 * 2**10
"""A larger spec of an InferenceFleet or WeightVersion is not read: half a MiB of empty lists takes 130 ms to parse."""

WATCH_SILENCE_SECONDS = 28
"""A watch is broken that is silent for this time: the server ends each one sooner."""


NOT_LEADING = "this process is not the leader any more"


@dataclass(slots=True)
class KubeHooks:
    """Functions that a client of the Kubernetes API calls around its requests.

    Fields:
        before_write: called with the path when a write is about to be sent, after it has waited for its turn. It
            raises to stop the write.
        after: called with the verb and the seconds of each request that ended, also with an error. Watches are left
            out: they last until the server ends them.
    """

    before_write: Callable[[str], None] = lambda _path: None
    after: Callable[[str, float], None] = lambda _verb, _seconds: None


class Kube(Protocol):
    """The Kubernetes API in raw JSON. Paths are absolute, as in the API reference.

    Errors: those of `fleet_operator.errors`.
    """

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Read one object or one page of a list."""

    async def create(self, path: str, body: Json) -> Json:
        """Create an object; `Conflict` if it exists."""

    async def replace(self, path: str, body: Json) -> Json:
        """Replace an object at its resourceVersion; `Conflict` if it changed."""

    async def apply(self, path: str, body: Json) -> Json:
        """Server-side apply: afterwards our fields are exactly those of the body."""

    async def merge(self, path: str, body: Json) -> Json:
        """JSON merge patch."""

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object if it has this uid. No error if it is gone."""

    def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Stream watch events until the server ends the stream.

        Errors: `Silent` after `WATCH_SILENCE_SECONDS` without an event.
        """


class HookedKube(Kube, Protocol):
    """A client with hooks."""

    hooks: KubeHooks


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """The outcome of one read or call of a worker. It is never an exception, so a bad pod affects no other.

    Fields:
        state: the worker's state, also when it refused.
        reason: why it refused or failed; a newer release may have other reasons. A silent answer can only
            have `Unauthorized`, which is not signed: read the token again.
        silent: there was no valid answer. A call may have taken effect.
        size_bytes: the length of the answer.
        cost_seconds: the time for which reading the answer held the event loop.
    """

    state: WorkerState | None = None
    reason: Reason | Word | None = None
    message: str = ""
    silent: bool = False
    size_bytes: int = field(default=0, compare=False)
    cost_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """The worker that a read or a call is for.

    Fields:
        base_url: its address from the pod's status. Another pod may have the address by now.
        token: the fleet's admin token. It signs calls and is never sent.
        pod_uid: the pod that must answer.
        instance: the process that a call is for, from its last answer; empty if it never answered. A
            read is for any process of the pod.
        namespace: of the fleet. Large answers are read in turns by namespace.
        adapters: the fleet's `spec.adapters.max`, which bounds its workers' answers.
    """

    base_url: str
    token: str
    pod_uid: str
    instance: str = ""
    namespace: str = ""
    adapters: int = 0


class Workers(Protocol):
    """The workers' admin ports. Cancelling an answer cancels its request."""

    def state(self, worker: Addressee) -> Awaitable[WorkerAnswer]:
        """Read a worker's state."""

    def tell(self, worker: Addressee, wanted: WantedRequest) -> Awaitable[WorkerAnswer]:
        """Name the desired versions to a process, and read its state."""

    def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> Awaitable[WorkerAnswer]:
        """Send a worker call. The answer comes when the worker has acted."""


class Leadership(Protocol):
    """The Lease as the operator uses it. Any thread may renew it."""

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader right now. Readable from every thread."""

    @property
    def term(self) -> int:
        """Number of this leadership; 0 before the first one."""

    async def acquire(self) -> None:
        """Wait until this process is the leader."""

    async def keep_renewing(self) -> None:
        """Renew until leadership is lost."""

    async def release(self) -> None:
        """Release the Lease, so that a standby takes over at once."""

    async def confirm(self) -> bool:
        """Read the Lease again. Returns: whether it names this process, read after this call."""
