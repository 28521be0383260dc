"""The calls to workers that the planners may ask for.

Each action is idempotent. Its reason goes into the log line and the event unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from fleet_operator.core.pod_actions import OnPod
from fleet_operator.core.work import Work, WorkKind
from fleet_worker import protocol
from rlfleet_resources.source import WeightSource

SHORT_CALL_SECONDS = 10.0
"""Timeout of a call that a worker answers at once."""
MAX_REASON_CHARACTERS = 500
"""Limit for the reason of a fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAction(OnPod):
    """Base of the calls to one worker's admin port.

    A call has the fields of its request, except for the epoch, which is set on sending.
    """

    kind: ClassVar[WorkKind]
    request: ClassVar[type[protocol.Request]]
    reused: ClassVar[bool] = False

    version: str = ""
    run_id: str | None = None
    digest: str | None = None

    @property
    def work(self) -> Work:
        """The work that it asks for: a call is not sent while one for the same work is in flight.

        The digest is not part of it, so that staging continues when the digest becomes known.
        """
        return Work(self.kind, self.version or None, self.run_id)

    @property
    def path(self) -> str:
        """The path of its request."""
        return self.request.path

    @property
    def drain_seconds(self) -> float:
        """How long running requests may continue before the worker answers."""
        return 0

    @property
    def lasts(self) -> bool:
        """Whether the worker may take a long time before it answers."""
        return self.drain_seconds > 0

    @property
    def answer_seconds(self) -> float:
        """The timeout of the answer."""
        return SHORT_CALL_SECONDS + self.drain_seconds

    def to_request(self, epoch: protocol.Epoch) -> protocol.Request:
        """Returns the request.

        Errors: ValueError if the call does not fit into the protocol.
        """
        names = self.request.model_fields.keys() & {f.name for f in fields(self)}
        content = {name: getattr(self, name) for name in names}
        if isinstance(source := content.get("source"), WeightSource):
            content["source"] = to_protocol(source)
        return self.request(**content | {"epoch": epoch})


def to_protocol(source: WeightSource) -> protocol.Source:
    """Returns the source as a worker reads it: by its name, since of two spellings of a repository workers know one."""
    return protocol.Source.model_validate(WeightSource.of(source.key()).to_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class LongCall(WorkerAction):
    """Base of the calls that read, load or compute."""

    timeout_seconds: float

    @property
    def lasts(self) -> bool:
        """Whether the worker may take a long time before it answers."""
        return True

    @property
    def answer_seconds(self) -> float:
        """The timeout of the answer."""
        return self.timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(LongCall):
    """Check a source and hold its bytes."""

    kind: ClassVar[WorkKind] = "stage"
    request = protocol.StageRequest

    source: WeightSource
    peers: tuple[protocol.Peer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFiles(Stage):
    """Compare the files of a source with the weights in the engine. Other files are read and refused.

    It has no digest: with one, a worker that has these weights reads no files.
    """

    kind = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(WorkerAction):
    """Stop generating, or renew the lease of the pause."""

    kind = "pause"
    request = protocol.PauseRequest

    mode: protocol.PauseMode
    drain_timeout_seconds: float
    lease_seconds: float

    @property
    def drain_seconds(self) -> float:
        """How long running requests may continue before the worker answers."""
        return self.drain_timeout_seconds if self.mode is protocol.PauseMode.WAIT else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(LongCall):
    """Put the staged version into the engine."""

    kind = "load"
    request = protocol.LoadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(LongCall):
    """Pause, load the staged version and resume in one call, for strategies without a barrier."""

    kind = "apply"
    request = protocol.ApplyRequest

    mode: protocol.PauseMode
    drain_timeout_seconds: float
    lease_seconds: float

    @property
    def answer_seconds(self) -> float:
        """The timeout of the answer."""
        return self.drain_timeout_seconds + self.timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(WorkerAction):
    """Generate again, on this version."""

    kind = "resume"
    request = protocol.ResumeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(WorkerAction):
    """Open the latch of a joining worker, on this version."""

    kind = "admit"
    request = protocol.AdmitRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(WorkerAction):
    """Close the latch and end the requests. The worker joins again when it can."""

    kind = "fence"
    request = protocol.FenceRequest

    drain_timeout_seconds: float = 0

    def to_request(self, epoch: protocol.Epoch) -> protocol.Request:
        """Returns the request. A worker accepts only a part of a long reason."""
        reason, seconds = self.reason[:MAX_REASON_CHARACTERS], self.drain_timeout_seconds
        return protocol.FenceRequest(reason=reason, drain_timeout_seconds=seconds, epoch=epoch)

    @property
    def drain_seconds(self) -> float:
        """How long running requests may continue before the worker answers."""
        return self.drain_timeout_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPrompts(LongCall):
    """Run the canary prompts on the weights in the engine, and compare them with other weights."""

    kind = "probe"
    request = protocol.PromptsRequest

    prompts: tuple[str, ...]
    max_tokens: int
    compare_with: str
    compare_with_run_id: str | None = None
    compare_with_digest: str | None = None


class LoraCall(WorkerAction):
    """Base of the calls about one LoRA adapter."""

    __slots__ = ()

    adapter: str

    @property
    def work(self) -> Work:
        """The work that it asks for, with the name of the adapter."""
        return Work(self.kind, self.version or None, self.run_id, self.adapter)

    @property
    def path(self) -> str:
        """The path of its request."""
        return self.request.path + self.adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLora(LoraCall, LongCall):
    """Base of the calls that read the files of a LoRA adapter."""

    request = protocol.AdapterRequest

    adapter: str
    source: WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PutLora(ReadLora):
    """Serve this version of a LoRA adapter."""

    kind = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLora(ReadLora):
    """Check the files of this version of a LoRA adapter and hold them, without serving them."""

    kind: ClassVar[WorkKind] = "stage-adapter"

    stage_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareLora(StageLora):
    """Compare the files of a LoRA adapter with those that the worker serves. It has no digest, too."""

    kind = "compare-adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveLora(LoraCall):
    """Stop serving a LoRA adapter."""

    kind = "remove-adapter"
    request = protocol.AdapterRemoval

    adapter: str


SwapCall = Stage | Pause | Load | Apply | Resume | Admit
LoraAction = StageLora | CompareLora | PutLora | RemoveLora
WorkerCall = SwapCall | CompareFiles | Fence | CanaryPrompts | LoraAction
