"""Words and small records that requests and states share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROTOCOL_VERSION = 2
"""2: calls are signed, and name the pod that they are for."""


Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]
"""A word of a fixed list that a newer release may have made longer. What this release does not know
stays text, and is taken for the most careful meaning: busy, closed, refused.
"""


class Management(StrEnum):
    """Who brings new weights to a fleet: `spec.weights.management`."""

    OPERATOR = "Operator"
    """The operator, as WeightVersions say; a trainer's own calls are refused."""
    EXTERNAL = "External"
    """A trainer, by its own calls; the operator admits workers and watches over them."""


VersionLabel = Annotated[
    str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""Label of one set of weights, as stamped on every reply; a valid Kubernetes label value."""

RunId = VersionLabel
"""One training run. Two runs may count their versions from 0: only a run and a version together,
with the digest, name one set of weights."""

WeightsDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
r"""SHA-256 over the lines `<sha256 of the file>  <file name>\n` of the weight files, their index if
there is one, and config.json, sorted by file name. `python -m fleet_worker manifest --digest DIR`
prints it."""

MAX_TERM = 2_000_000_000
"""`leaseTransitions` of coordination/v1 is an int32: room is left for every later leader."""

AdapterName = VersionLabel
"""What requests name as their `model` to be answered with an adapter; the same for all versions."""


class Message(BaseModel):
    """Base of all records: immutable; unknown keys are ignored so that versions can differ."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Phase(StrEnum):
    """Where a worker stands. `joining` and `broken` are closed to traffic, whatever a client asks."""

    STARTING = "starting"
    """The engine is not up yet."""
    JOINING = "joining"
    """Up, with the latch closed: nobody is served until the operator admits the worker."""
    SERVING = "serving"
    """Admitted and generating."""
    PAUSING = "pausing"
    """A pause was asked for and running requests are drained or being stopped."""
    PAUSED = "paused"
    """Admitted, but nothing generates; requests are held."""
    LOADING = "loading"
    """New weights go into the engine; nothing generates."""
    BROKEN = "broken"
    """A load failed inside the engine; nothing is served from this model state, ever."""
    DRAINING = "draining"
    """The process is about to end."""


class Reason(StrEnum):
    """Why a worker refused or failed. Stable words: the operator maps them to condition reasons."""

    SOURCE_ABSENT = "SourceAbsent"
    """The directory of the source does not exist: not yet, or not any more."""
    SOURCE_NOT_FOUND = "SourceNotFound"
    """The source exists and a file that its index names does not, or it is no directory."""
    SOURCE_OUTSIDE_ROOTS = "SourceOutsideRoots"
    """The source, after links are followed, is not below an allowed root."""
    SOURCE_UNREADABLE = "SourceUnreadable"
    """The source exists but the worker may not or cannot read it."""
    SOURCE_NOT_READY = "SourceNotReady"
    """The source is still being written: its marker is missing, or its files grow."""
    CHECKPOINT_TRUNCATED = "CheckpointTruncated"
    """A file is shorter or longer than its own header says."""
    CHECKPOINT_MALFORMED = "CheckpointMalformed"
    """A file is not what its name says (not safetensors, no JSON, pickled)."""
    CHECKPOINT_NOT_FINITE = "CheckpointNotFinite"
    """A tensor holds values that are infinite or not a number."""
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    """Architecture, tensor names, shapes or types differ from the running model's."""
    CHECKPOINT_CHANGED = "CheckpointChanged"
    """The files changed between staging and loading."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The files are not those that the digest names."""
    SUPERSEDED = "Superseded"
    """A newer stage call took over while this one was running."""
    STALE_EPOCH = "StaleEpoch"
    """The call comes from an older leader or an older rollout than one seen before."""
    HELD_BY_ANOTHER = "HeldByAnother"
    """Another driver holds the pause lease."""
    WRONG_PHASE = "WrongPhase"
    """The call does not fit the phase the worker is in."""
    NOT_STAGED = "NotStaged"
    """A load was asked for a version that is not staged."""
    VERSION_MISMATCH = "VersionMismatch"
    """Resume or admit named another version than the one in the engine."""
    VERSION_REUSED = "VersionReused"
    """The version's label already stands for other weights on this worker."""
    BROKEN = "Broken"
    """The engine's weights are not to be trusted; only a reload or a restart helps."""
    ENGINE_FAILED = "EngineFailed"
    """The engine failed while it was asked to do the work."""
    PROBE_FAILED = "ProbeFailed"
    """The new weights do not compute (not a number, or the forward pass fails)."""
    ADAPTERS_OFF = "AdaptersOff"
    """The worker was started without adapters (`--max-loras`)."""
    NO_ADAPTER_SLOT = "NoAdapterSlot"
    """Every slot for adapters is taken, by served versions or by requests that still run."""
    NOT_YOURS_TO_DRIVE = "NotYoursToDrive"
    """The operator manages this fleet's weights; a trainer publishes versions to it instead."""
    NOT_AVAILABLE = "NotAvailable"
    """The engine has not what the call needs (no GPU, no weight transfer)."""
    UNAUTHORIZED = "Unauthorized"
    """No bearer token and no signature, or a wrong one."""
    WRONG_POD = "WrongPod"
    """The call is for another pod than the one that this worker runs in."""
    STALE_CALL = "StaleCall"
    """The call is for an earlier process of this pod, or older than one that was taken already."""
    BAD_REQUEST = "BadRequest"
    """The body does not fit the call."""


class PauseMode(StrEnum):
    """vLLM's pause modes (`POST /pause?mode=`, vLLM 0.32)."""

    KEEP = "keep"
    """Requests are frozen and go on after resume; new ones wait."""
    WAIT = "wait"
    """Running requests finish first, up to the drain deadline."""
    ABORT = "abort"
    """Running requests end at once with the tokens they have."""


class Epoch(Message):
    """Fences off late calls: compared as a pair, the older one is refused.

    Fields:
        term: the leader's term, `leaseTransitions` of the Lease; grows with every new leader.
        sequence: grows within one leader with every new target of the fleet.
    """

    term: Annotated[int, Field(ge=0, le=MAX_TERM)]
    sequence: Annotated[int, Field(ge=0, le=2**53)]

    def __lt__(self, other: Epoch) -> bool:
        return (self.term, self.sequence) < (other.term, other.sequence)


class HuggingFaceSource(Message):
    """A repository in the local Hugging Face cache; nothing is downloaded while serving."""

    repo: Annotated[str, Field(min_length=1, max_length=200)]
    revision: Annotated[str, Field(min_length=1, max_length=100)] = "main"


class Source(Message):
    """Where weights come from: exactly one of a directory or a cached repository."""

    path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    hugging_face: Annotated[HuggingFaceSource | None, Field(alias="huggingFace")] = None

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.path is None) == (self.hugging_face is None):
            raise ValueError("exactly one of path and huggingFace must be set")
        return self

    def __str__(self) -> str:
        if self.hugging_face is not None:
            return f"hf://{self.hugging_face.repo}@{self.hugging_face.revision}"
        return str(self.path)


class Named(Protocol):
    """Anything that names weights. A request leaves open what it leaves out."""

    @property
    def version(self) -> str:
        """Their version."""

    @property
    def run_id(self) -> str | None:
        """The run that the version belongs to."""

    @property
    def digest(self) -> str | None:
        """Of their bytes."""


Holder = Annotated[str, Field(min_length=1, max_length=253)]
"""Who drives a worker; shown to a second driver, which is refused while the first one's lease runs."""
