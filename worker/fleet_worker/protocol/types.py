"""Types that requests and states share, and the bounds of fields in answers.

A reader does not trust an answer, so each of its fields has bounds.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic.functional_validators import WrapValidator

from rlfleet_resources.source import (
    ManifestDigest,
    Source,
    VersionLabel,
)

PROTOCOL_VERSION = 2
"""2: calls are signed and name their target pod."""


Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]
"""A word of a fixed list to which a newer release may add. A word that this release does not know
stays text, and gets the most careful meaning: busy, closed, refused.
"""


class Management(StrEnum):
    """The source of new weights for a fleet: `spec.weights.management`."""

    OPERATOR = "Operator"
    """The operator, from WeightVersions. Workers refuse a trainer's own calls."""
    EXTERNAL = "External"
    """A trainer, by its own calls. The operator admits workers and watches them."""


class Loading(StrEnum):
    """How a version comes into an engine: `spec.weights.loading`."""

    FULL = "Full"
    """All of its weights are loaded."""
    IN_PLACE = "InPlace"
    """Only the elements that differ from the version in the engine are written, where that is possible."""


RunId = VersionLabel
"""One training run. Two runs may both count from 0: run, version and digest together name one set of
weights."""

WeightsDigest = ManifestDigest
r"""SHA-256 of the lines `<sha256 of the file>  <file name>\n`, sorted by file name. The files are the
weight files, their index if there is one, and config.json. `python -m fleet_worker manifest --digest
DIR` prints it."""

MAX_TERM = 2_000_000_000
"""`leaseTransitions` of coordination/v1 is an int32. The limit leaves room for later leaders."""

AdapterName = VersionLabel
"""The `model` of requests for an adapter, the same for all its versions."""


class Message(BaseModel):
    """Base of all records. Immutable; ignores unknown keys, so that releases can differ."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Phase(StrEnum):
    """State of a worker. In `joining` and `broken` it takes no traffic."""

    STARTING = "starting"
    """The engine is not up yet."""
    JOINING = "joining"
    """Up, with the latch closed: the worker takes no traffic until it is admitted."""
    SERVING = "serving"
    """Admitted and generating."""
    PAUSING = "pausing"
    """A pause has begun, and running requests finish or stop."""
    PAUSED = "paused"
    """Admitted, but the engine is paused and the worker holds requests."""
    LOADING = "loading"
    """New weights go into the paused engine."""
    BROKEN = "broken"
    """A load failed inside the engine. The worker never serves from this state of the model."""
    DRAINING = "draining"
    """The process is about to end."""


class Reason(StrEnum):
    """Reason of a refusal or a failure. Conditions use the values as reasons, so they are stable."""

    SOURCE_ABSENT = "SourceAbsent"
    """The directory of the source does not exist, yet or any more."""
    SOURCE_NOT_FOUND = "SourceNotFound"
    """The source is not a directory, or lacks a file that its index names."""
    SOURCE_OUTSIDE_ROOTS = "SourceOutsideRoots"
    """The source, after following links, is not below an allowed root."""
    SOURCE_UNREADABLE = "SourceUnreadable"
    """The source exists, but the worker cannot read it."""
    SOURCE_NOT_READY = "SourceNotReady"
    """The source is still being written: its marker is missing, or its files grow."""
    CHECKPOINT_TRUNCATED = "CheckpointTruncated"
    """A file is shorter or longer than its own header says."""
    CHECKPOINT_MALFORMED = "CheckpointMalformed"
    """The content of a file does not fit its name (not safetensors, not JSON, pickled)."""
    CHECKPOINT_AMBIGUOUS = "CheckpointAmbiguous"
    """The directory has two sets of weights, and loaders differ in which one they read."""
    CHECKPOINT_NOT_FINITE = "CheckpointNotFinite"
    """A tensor holds values that are infinite or not a number."""
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    """Architecture, tensor names, shapes or types differ from the running model's."""
    CHECKPOINT_CHANGED = "CheckpointChanged"
    """The files changed between staging and loading."""
    BASE_MISSING = "BaseMissing"
    """The version is a delta, and the weights that it changes are not there."""
    DELTA_MISMATCH = "DeltaMismatch"
    """A delta does not give the bytes that were published: its base or its own bytes differ."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The files do not have the digest of the request."""
    PEER_UNREADABLE = "PeerUnreadable"
    """No worker that the call names as a peer sends the version, or they sent other bytes."""
    SUPERSEDED = "Superseded"
    """A newer stage call, or a later call for the same LoRA adapter, replaced this one."""
    STALE_EPOCH = "StaleEpoch"
    """The worker has accepted a call of a newer leader or a newer rollout."""
    HELD_BY_ANOTHER = "HeldByAnother"
    """Another driver holds the pause lease."""
    WRONG_PHASE = "WrongPhase"
    """The call does not fit the phase of the worker."""
    NOT_STAGED = "NotStaged"
    """A load named a version that is not staged."""
    VERSION_MISMATCH = "VersionMismatch"
    """Resume or admit named another version than the one in the engine."""
    VERSION_REUSED = "VersionReused"
    """The version already names other weights on this worker."""
    BROKEN = "Broken"
    """The engine's weights are not trusted; only a reload or a restart helps."""
    ENGINE_FAILED = "EngineFailed"
    """The engine failed during the call."""
    PROBE_FAILED = "ProbeFailed"
    """The forward pass with the new weights fails or gives values that are not numbers."""
    ADAPTERS_OFF = "AdaptersOff"
    """The worker was started without adapters (`--max-loras`)."""
    NO_ADAPTER_SLOT = "NoAdapterSlot"
    """Served versions, or versions that running requests still use, take all slots for adapters."""
    NOT_YOURS_TO_DRIVE = "NotYoursToDrive"
    """The operator manages this fleet's weights. A trainer publishes WeightVersions instead."""
    NOT_AVAILABLE = "NotAvailable"
    """The worker lacks something that the call needs (a GPU, a weight transfer, a kernel that reloads)."""
    UNAUTHORIZED = "Unauthorized"
    """The bearer token or signature is missing or wrong."""
    WRONG_POD = "WrongPod"
    """The call is for another pod."""
    STALE_CALL = "StaleCall"
    """The call is for an earlier process of this pod, or older than one that the worker took."""
    BAD_REQUEST = "BadRequest"
    """The body does not fit the call."""


class PauseMode(StrEnum):
    """vLLM's pause modes (`POST /pause?mode=`)."""

    KEEP = "keep"
    """Running requests freeze and continue after resume; new ones wait."""
    WAIT = "wait"
    """Running requests finish first, up to the drain timeout."""
    ABORT = "abort"
    """Running requests end at once with the tokens that they have."""


class Epoch(Message):
    """Order of the operator's calls. A worker refuses a call with an older pair.

    Fields:
        term: the leader's term, from `leaseTransitions` of the Lease. It grows with every leader.
        sequence: grows within a term with every new goal of the fleet or of an adapter, and after admissions.
    """

    term: Annotated[int, Field(ge=0, le=MAX_TERM)]
    sequence: Annotated[int, Field(ge=0, le=2**53)]

    def __lt__(self, other: Epoch) -> bool:
        return (self.term, self.sequence) < (other.term, other.sequence)


class Named(Protocol):
    """Anything that names weights. An omitted run or digest may have any value."""

    @property
    def version(self) -> str:
        """The version of the weights."""

    @property
    def run_id(self) -> str | None:
        """The run that the version belongs to."""

    @property
    def digest(self) -> str | None:
        """The digest of the weights."""


MAX_DRIVER_CHARACTERS = 253
Holder = Annotated[str, Field(min_length=1, max_length=MAX_DRIVER_CHARACTERS)]
"""Name of the caller that drives a worker. The worker shows it to a second driver, which it refuses
while the lease of the first one runs."""


_LONGEST_SECONDS = 1e10


def _not_negative(seconds: float) -> float:
    return max(seconds, 0.0)


def _bounded(measure: float | None) -> float | None:
    """Return None for NaN, and a very large number for an infinite one."""
    if measure is None or math.isnan(measure):
        return None
    return min(max(measure, -1e9), 1e9)


def _from_0_to_1(share: float | None) -> float | None:
    """Return None for a share outside of 0 to 1."""
    return share if share is not None and 0 <= share <= 1 else None


def _known_source(value: Any, read: ValidatorFunctionWrapHandler) -> Source | None:
    """Return None for a kind of source that this release does not know."""
    try:
        source: Source | None = read(value)
    except ValidationError:
        return None
    return source


Label = Annotated[str, Field(max_length=128)]
Text = Annotated[str, Field(max_length=1024)]
Remark = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[
    float, Field(le=_LONGEST_SECONDS, allow_inf_nan=False), AfterValidator(_not_negative)
]
"""An age or a duration. A negative one, from a clock that went back, counts as 0."""
Measure = Annotated[float | None, AfterValidator(_bounded)]
Share = Annotated[float | None, AfterValidator(_from_0_to_1)]
AnySource = Annotated[Source | None, WrapValidator(_known_source)]
