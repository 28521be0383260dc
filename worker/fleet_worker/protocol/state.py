"""What a worker answers: where it stands, or why it will not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_worker.protocol.words import (
    PROTOCOL_VERSION,
    Epoch,
    Management,
    Message,
    PauseMode,
    Phase,
    Reason,
    Source,
)


class Staged(Message):
    """A version that passed all checks and waits for its load."""

    version: str
    run_id: str | None = None
    source: Source
    digest: str | None = None
    """Of the bytes that a load will read; every worker of this release reports it."""
    size_bytes: int
    in_memory: bool
    """False: larger than the staging budget; only the page cache was warmed."""


class Operation(Message):
    """Work under way right now."""

    kind: Literal["stage", "pause", "load", "apply", "resume", "fence", "probe", "adapter", "drain"]
    version: str | None = None
    run_id: str | None = None
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
    run_id: str | None = None
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
        run_id: the run that the version belongs to, if a run was named.
        digest: of the weights in the engine. None for weights that came over a collective, and
            while the engine's weights are not to be trusted.
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
    run_id: str | None = None
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
