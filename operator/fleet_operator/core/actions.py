"""The closed set of things that the planners may ask for.

Each action is idempotent and carries its reason, which becomes the log line and the event
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from fleet_operator.api.source import WeightSource
from fleet_operator.core.identity import label
from fleet_worker.protocol import PauseMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Create the worker of one ordinal."""

    name: str
    manifest: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete one pod, guarded by its uid; its preStop hook lets what still runs end."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginDrain:
    """Take a pod out of the Service and write down that it is to go once its requests have ended."""

    name: str
    uid: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDrain:
    """Take that back: the pod stays, and joins again."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPod:
    """Become the owner of a pod that carries the fleet's labels and belongs to nobody."""

    name: str
    uid: str
    owner: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Take a pod out of the Service, durably, and write down why."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAction:
    """Base of the calls to one worker's admin port."""

    kind: ClassVar[str]
    reused: ClassVar[bool] = False

    pod_uid: str
    pod_name: str
    reason: str
    version: str = ""
    run_id: str | None = None
    digest: str | None = None

    @property
    def key(self) -> str:
        """Names the work. While work of one key is in flight it is not sent again.

        The digest is no part of it: staging that began before the digest was known goes on.
        """
        return f"{self.kind} {label(self.version, self.run_id)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(WorkerAction):
    """Check a source and hold its bytes."""

    kind: ClassVar[str] = "stage"

    source: WeightSource
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(WorkerAction):
    """Stop generating, or renew the lease of a pause."""

    kind: ClassVar[str] = "pause"

    mode: PauseMode
    drain_timeout_seconds: float
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(WorkerAction):
    """Put the staged version into the engine."""

    kind: ClassVar[str] = "load"

    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(WorkerAction):
    """Pause, load the staged version and resume, in one call, for strategies without a barrier."""

    kind: ClassVar[str] = "apply"

    mode: PauseMode
    drain_timeout_seconds: float
    lease_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(WorkerAction):
    """Generate again, on this version."""

    kind: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(WorkerAction):
    """Open the latch of a joiner, on this version."""

    kind: ClassVar[str] = "admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(WorkerAction):
    """Close the latch: the worker joins again when it can."""

    kind: ClassVar[str] = "fence"

    drain_timeout_seconds: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(WorkerAction):
    """Run the canary's prompts on the weights in the engine."""

    kind: ClassVar[str] = "probe"

    prompts: tuple[str, ...]
    max_tokens: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAdapter(WorkerAction):
    """Serve this version of a LoRA adapter."""

    kind: ClassVar[str] = "adapter"

    adapter: str
    source: WeightSource
    timeout_seconds: float

    @property
    def key(self) -> str:
        """Names the work: an adapter's name is part of it."""
        return f"{self.kind} {self.adapter} {label(self.version, self.run_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAdapter(WorkerAction):
    """Serve a LoRA adapter no more."""

    kind: ClassVar[str] = "remove-adapter"

    adapter: str

    @property
    def key(self) -> str:
        """Names the work."""
        return f"{self.kind} {self.adapter}"


WorkerCall = (
    Stage | Pause | Load | Apply | Resume | Admit | Fence | Probe | PutAdapter | RemoveAdapter
)
PodAction = CreatePod | DeletePod | BeginDrain | EndDrain | AdoptPod | Quarantine
Action = WorkerCall | PodAction
