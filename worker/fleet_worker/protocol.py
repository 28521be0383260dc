"""What the operator and a worker say to each other on the worker's admin port.

This is the only module of the worker that the operator imports; it holds records and names, no
behaviour. Every mutating call answers with the worker's whole state, so that one round trip both
acts and observes. All calls are idempotent: sending one again is always safe.

Durations are seconds on the worker's own clock (ages, never timestamps: clocks of two machines
are not compared).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROTOCOL_VERSION = 1


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

    SOURCE_NOT_FOUND = "SourceNotFound"
    """The source, or a file that its index names, does not exist."""
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
    """No bearer token, or a wrong one."""
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

    term: Annotated[int, Field(ge=0)]
    sequence: Annotated[int, Field(ge=0)]

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


# --- requests -------------------------------------------------------------------------------


Holder = Annotated[str, Field(min_length=1, max_length=253)]
"""Who drives a worker; shown to a second driver, which is refused while the first one's lease runs."""


class StageRequest(Message):
    r"""`PUT /v1/worker/stage`: check a source and hold its bytes; answers when that is done.

    Serving, joining or paused. Staging another version replaces what is staged, also while it is
    still being read (`Superseded` for the caller that waits for it). The same version again joins
    the work under way or answers at once.

    Fields:
        digest: `sha256:` and 64 hex digits over the lines `<sha256 of the file>  <file name>\n` of
            the weight files, their index if there is one, and config.json, sorted by file name
            (`python -m fleet_worker manifest --digest DIR` prints it).
    """

    version: VersionLabel
    source: Source
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    epoch: Epoch


class PauseRequest(Message):
    """`PUT /v1/worker/pause`: stop generating; also renews the lease of a worker that is paused.

    Fields:
        drain_timeout_seconds: how long `wait` may take; afterwards the pause falls back to `keep`.
        lease_seconds: without a renewal within this time the worker opens again by itself if its
            weights are untouched, else it closes its latch.
        holder: who drives, shown to a second driver.
    """

    mode: PauseMode
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)]
    holder: Holder = "operator"
    epoch: Epoch


class LoadRequest(Message):
    """`PUT /v1/worker/load`: put the staged version into the engine. Only paused or joining.

    A failure inside the engine answers 500; by then the last good version has been put back once
    and the worker is `joining` on it with `load_failure` set, or the process is about to end.
    """

    version: VersionLabel
    holder: Holder = "operator"
    epoch: Epoch


class ApplyRequest(Message):
    """`PUT /v1/worker/apply`: pause, load the staged version and resume, as one transaction.

    For strategies without a barrier. Refused before the engine is touched, the worker goes on with
    the weights that it has; the fields mean what they mean in `PauseRequest`.
    """

    version: VersionLabel
    mode: PauseMode
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)]
    holder: Annotated[str, Field(min_length=1, max_length=253)] = "operator"
    epoch: Epoch


class OpenRequest(Message):
    """`PUT /v1/worker/resume` (paused) and `/admit` (joining): serve, if this is the version."""

    version: VersionLabel
    holder: Holder = "operator"
    epoch: Epoch


class FenceRequest(Message):
    """`PUT /v1/worker/fence`: close the latch.

    New requests are refused at once. Running ones may finish within `drain_timeout_seconds`; then
    they end with the tokens they have.
    """

    reason: Annotated[str, Field(min_length=1, max_length=500)]
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0
    epoch: Epoch


class ProbeRequest(Message):
    """`PUT /v1/worker/probe`: run prompts on the weights in the engine and remember what came out.

    Only serving or joining; clients see nothing of it. The first run of a version is the baseline
    of the next version's: the same tokens are scored again, so that the two can be compared.

    Fields:
        prompts: texts, at most 32.
        max_tokens: length of the greedy continuation of each.
    """

    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...],
        Field(min_length=1, max_length=32),
    ]
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 32
    epoch: Epoch


class AdapterRequest(Message):
    """`PUT /v1/worker/adapters/{name}`: serve a version of a LoRA adapter under a stable name.

    Joining, serving or paused. The files are checked and copied first, which disturbs nobody; then
    the adapter goes into a slot of the engine under a name of its own for each version, and new
    requests get it. Requests that run keep the version they began with; it leaves the engine, and
    its files go, when the last of them has ended. Refused, the version before goes on being served.

    A worker that starts anew holds no adapters: put them back before it is admitted.

    Fields:
        source: holds `adapter_config.json` and `adapter_model.safetensors`.
        digest: as in `StageRequest`, over these two files.
    """

    version: VersionLabel
    source: Source
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    holder: Holder = "operator"
    epoch: Epoch


class AdapterRemoval(Message):
    """`DELETE /v1/worker/adapters/{name}`: serve it no more; running requests finish with it."""

    holder: Holder = "operator"
    epoch: Epoch


# --- state ----------------------------------------------------------------------------------


class Staged(Message):
    """A version that passed all checks and waits for its load."""

    version: str
    source: Source
    size_bytes: int
    in_memory: bool
    """False: larger than the staging budget; only the page cache was warmed."""


class Operation(Message):
    """Work under way right now."""

    kind: Literal["stage", "pause", "load", "apply", "resume", "fence", "probe", "adapter", "drain"]
    version: str | None = None
    running_seconds: float


class PauseState(Message):
    """Present while paused.

    Fields:
        mode: how requests were stopped; `keep` after a `wait` whose drain deadline passed.
        drain_timed_out: whether that happened.
        cache_kept: whoever drives wants keys and values of older weights to be read on.
    """

    mode: PauseMode
    drain_timed_out: bool = False
    cache_kept: bool = False
    holder: str
    paused_seconds: float
    lease_remaining_seconds: float


class Failure(Message):
    """The last refusal of a stage, or the last failure of a load; gone after the next success."""

    version: str | None
    reason: Reason
    message: Annotated[str, Field(max_length=1000)]
    age_seconds: float


class SwapTimings(Message):
    """The last completed swap, in seconds. `paused` spans from pause to resume."""

    version: str
    stage_seconds: float | None = None
    pause_seconds: float | None = None
    load_seconds: float | None = None
    resume_seconds: float | None = None
    paused_seconds: float | None = None


class ProbeReport(Message):
    """What the prompts of a `ProbeRequest` gave under the version in the engine.

    Fields:
        version: the weights that were probed.
        compared_with: the version before, whose continuations were scored again; None if there was
            no baseline.
        finite: all log-probabilities are numbers.
        repetition: largest share of a continuation that one 4-gram makes up, 0 to 1.
        logprob_drift: mean absolute difference of the log-probabilities of the baseline's tokens.
        kl: mean Kullback-Leibler divergence of this version from the baseline over the baseline's
            most probable tokens, in nats.
        tokens: how many tokens were compared.
    """

    version: str
    compared_with: str | None = None
    finite: bool
    repetition: float
    logprob_drift: float | None = None
    kl: float | None = None
    tokens: int = 0


class RetiringAdapter(Message):
    """A version that new requests do not get any more, and the requests that still use it."""

    version: str
    requests: int


class AdapterState(Message):
    """One adapter name.

    Fields:
        version: what new requests get; None when the name was removed and only `retiring` is left.
        requests: requests that use this version now, held ones included.
        retiring: versions that leave the engine as soon as their requests have ended.
    """

    name: str
    version: str | None
    source: Source | None = None
    digest: str | None = None
    size_bytes: int = 0
    requests: int = 0
    retiring: tuple[RetiringAdapter, ...] = ()


class AdapterSlots(Message):
    """Room for adapters in the engine: each version takes one slot until it has left.

    Fields:
        max_rank: largest rank that fits.
    """

    total: int
    used: int
    max_rank: int


class AdapterFailure(Failure):
    """The last refusal of an adapter; gone after the next success under the same name."""

    name: str


class TransferState(Message):
    """Weights that come over a collective instead of from files.

    Fields:
        backend: vLLM's weight transfer engine.
        connected: a trainer's group was joined; a restart of the process loses it.
        updating: an update was begun and is not finished.
        updates: how many were finished since the process started.
    """

    backend: str
    connected: bool = False
    updating: bool = False
    updates: int = 0


class EngineInfo(Message):
    """What runs underneath."""

    name: Literal["vllm"] = "vllm"
    version: str
    model: str
    world_size: int = 1


class WorkerState(Message):
    """`GET /v1/worker/state`, and the answer to every mutating call.

    Fields:
        instance: new for every process start; a change means that everything else started anew.
        admitted: whether the latch is open. `serving`, `pausing`, `paused` imply it.
        version: label of the weights in the engine; set after a load succeeded, None when the
            engine's weights are not to be trusted.
        requests_running / requests_held: generating now / waiting for resume.
        adapter_slots: None on a worker that serves no adapters.
        transfer: None on a worker that takes weights from files only.
    """

    protocol: int = PROTOCOL_VERSION
    worker: str
    instance: str
    uptime_seconds: float
    phase: Phase
    admitted: bool
    version: str | None
    source: Source | None = None
    digest: str | None = None
    staged: Staged | None = None
    operation: Operation | None = None
    requests_running: int = 0
    requests_held: int = 0
    pause: PauseState | None = None
    lease_expiries: int = 0
    epoch: Epoch | None = None
    management: Management = Management.OPERATOR
    stage_failure: Failure | None = None
    load_failure: Failure | None = None
    timings: SwapTimings | None = None
    probe: ProbeReport | None = None
    adapters: tuple[AdapterState, ...] = ()
    adapter_slots: AdapterSlots | None = None
    adapter_failure: AdapterFailure | None = None
    transfer: TransferState | None = None
    engine: EngineInfo | None = None


class ErrorDetail(Message):
    """Why a call was refused, in words fit for a person."""

    reason: Reason
    message: Annotated[str, Field(max_length=1000)]
    retry_after_seconds: float | None = None


class ErrorReply(Message):
    """Body of every answer that is not 2xx: 4xx is a refusal, 5xx a failure of the engine."""

    error: ErrorDetail
    state: WorkerState | None = None


# --- names ----------------------------------------------------------------------------------

STATE_PATH = "/v1/worker/state"
STAGE_PATH = "/v1/worker/stage"
PAUSE_PATH = "/v1/worker/pause"
LOAD_PATH = "/v1/worker/load"
APPLY_PATH = "/v1/worker/apply"
RESUME_PATH = "/v1/worker/resume"
ADMIT_PATH = "/v1/worker/admit"
PROBE_PATH = "/v1/worker/probe"
FENCE_PATH = "/v1/worker/fence"
ADAPTERS_PATH = "/v1/worker/adapters/"
"""Followed by the adapter's name."""
DRAIN_PATH = "/v1/worker/drain"
LIVE_PATH = "/livez"
READY_PATH = "/readyz"

HEADER_VERSION_START = "x-weight-version-start"
"""Version of the first token of a reply; on every reply with tokens, streamed or not."""
HEADER_VERSION_END = "x-weight-version-end"
"""Version of the last token of a reply; only where the reply is not streamed."""
HEADER_VERSION_EXACT = "x-weight-version-exact"
"""On a request: its tokens must all be of this version, else 409."""
HEADER_VERSION_MIN = "x-weight-version-min"
"""On a request: its tokens must be of this numbered version or a later one, else 409."""
HEADER_VERSION = "x-weight-version"
"""The worker's version, with a 409."""

ENV_WORKER_NAME = "RLFLEET_WORKER_NAME"
"""Pod name; shown in state and logs."""
ENV_ADMIN_HOST = "RLFLEET_ADMIN_HOST"
ENV_ADMIN_PORT = "RLFLEET_ADMIN_PORT"
"""Where this worker's admin port listens, for `drain`."""
ENV_ADMIN_TOKEN_FILE = "RLFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - a path, not a secret
"""File that holds the bearer token of the admin port; read again when it changes."""
ENV_START_VERSION = "RLFLEET_START_VERSION"
ENV_START_PATH = "RLFLEET_START_PATH"
"""The version that the fleet serves now and its directory, filled in at every container start.

A (re)started worker starts on it, if it passes the checks, so that it need not load twice; else on
the model's own weights.
"""


class OwnedFlag(NamedTuple):
    """A flag of `vllm serve` that a fleet's `engine.args` may not hold.

    Fields:
        flag: its long name; its `--no-` form is owned with it.
        reason: why, ready for the refusal.
        short: other names of the same flag.
        family: every flag whose name begins like this one (or like its short name) is meant.
    """

    flag: str
    reason: str
    short: str = ""
    family: bool = False


OWNED_ENGINE_FLAGS = (
    OwnedFlag("--model", "spec.model.source chooses the model"),
    OwnedFlag("--revision", "spec.model.source chooses the revision"),
    OwnedFlag("--code-revision", "spec.model.source chooses the revision"),
    OwnedFlag("--served-model-name", "spec.model.name is the served name, stable over versions"),
    OwnedFlag("--load-format", "weights are safetensors that the worker has checked"),
    OwnedFlag("--host", "the worker binds the pod's address"),
    OwnedFlag("--port", "spec.serving.port chooses the port"),
    OwnedFlag("--uds", "the worker listens on spec.serving.port"),
    OwnedFlag("--root-path", "the latch and the probes know the paths as vLLM serves them"),
    OwnedFlag("--config", "a file could set flags that the worker owns"),
    OwnedFlag("--middleware", "the latch is the outermost middleware"),
    OwnedFlag("--worker-cls", "the worker extension needs vLLM's own worker class"),
    OwnedFlag("--worker-extension-cls", "checks, loads and probes run in the worker's extension"),
    OwnedFlag("--enable-scale-out", "the worker turns the token route on"),
    OwnedFlag("--tokens-only", "it would open an abort route without authentication"),
    OwnedFlag("--api-server-count", "one process must see all requests of a worker", "-asc"),
    OwnedFlag("--headless", "the worker is the API server of its engine"),
    OwnedFlag("--grpc", "only the HTTP routes carry weight versions", family=True),
    OwnedFlag(
        "--data-parallel", "a worker is one engine; raise spec.replicas instead", "-dp", family=True
    ),
    OwnedFlag("--nnodes", "a worker is one pod", "-n"),
    OwnedFlag("--node-rank", "a worker is one pod", "-r"),
    OwnedFlag("--enable-elastic-ep", "it changes the engine's size behind the operator's back"),
    OwnedFlag("--enable-fault-tolerance", "it opens control routes on the public port"),
    OwnedFlag("--profiler-config", "it opens control routes on the public port"),
    OwnedFlag("--enable-tokenizer-info-endpoint", "the public port serves no such route"),
    OwnedFlag("--shutdown-timeout", "the worker drains by itself"),
    OwnedFlag("--weight-transfer-config", "--weight-transfer-backend of the worker sets it"),
    OwnedFlag("--kv-transfer-config", "keys and values of other weights could be read"),
    OwnedFlag("--enable-lora", "spec.adapters.max turns adapters on"),
    OwnedFlag("--max-loras", "spec.adapters.max chooses how many adapters there may be"),
    OwnedFlag("--max-cpu-loras", "spec.adapters.max chooses how many adapters there may be"),
    OwnedFlag("--max-lora-rank", "spec.adapters.maxRank chooses the largest rank"),
    OwnedFlag("--lora-modules", "adapters have versions, which the worker checks and labels"),
    OwnedFlag("--default-mm-loras", "a request names its adapter, which has a version"),
    OwnedFlag("--logging-config", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-config-file", "--log-format and --log-level of the worker choose it"),
    OwnedFlag("--log-level", "--log-format and --log-level of the worker choose it"),
)
"""What rlfleet owns among the flags of vLLM 0.32, with the reason that a refusal names.

Compared after `_` became `-`; an unambiguous beginning of a name counts as the name, as it does
for vLLM's own parser.
"""
