"""What a worker answers: where it stands, or why it will not.

Whoever reads an answer does not trust it: every text, list and number is bounded, and a word that
this release does not know stays text (`Word`).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler
from pydantic.functional_validators import WrapValidator

from fleet_worker.protocol.words import (
    PROTOCOL_VERSION,
    Epoch,
    Management,
    Message,
    PauseMode,
    Phase,
    Reason,
    Source,
    Word,
)

MAX_ANSWER_BYTES = 512 * 1024
"""No answer is longer. The longest state that a fleet can bring about has 65 adapters
(`spec.adapters.max` is at most 64, and a slot more) with sources of 1,024 characters: 90 KiB of
plain letters, 400 KiB if every one is a control character, which JSON writes in six.
"""
_MAX_ADAPTERS = 1024
_MAX_FAILURES = 16
_LONGEST_SECONDS = 1e10


def _not_negative(seconds: float) -> float:
    return max(seconds, 0.0)


def _bounded(measure: float | None) -> float | None:
    """No number at all is no measure; an infinite one is a very large one."""
    if measure is None or math.isnan(measure):
        return None
    return min(max(measure, -1e9), 1e9)


def _from_0_to_1(share: float | None) -> float | None:
    """A share that cannot be is not known."""
    return share if share is not None and 0 <= share <= 1 else None


def _known_source(value: Any, read: ValidatorFunctionWrapHandler) -> Source | None:
    """A kind of source that this release does not know is none that it could use."""
    try:
        source: Source | None = read(value)
    except ValidationError:
        return None
    return source


_Label = Annotated[str, Field(max_length=128)]
_Text = Annotated[str, Field(max_length=1024)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[
    float, Field(le=_LONGEST_SECONDS, allow_inf_nan=False), AfterValidator(_not_negative)
]
"""An age or a duration; what a clock made negative is 0."""
_Measure = Annotated[float | None, AfterValidator(_bounded)]
_Share = Annotated[float | None, AfterValidator(_from_0_to_1)]
_AnySource = Annotated[Source | None, WrapValidator(_known_source)]


class Staged(Message):
    """A version that passed all checks and waits for its load."""

    version: _Label
    run_id: _Label | None = None
    source: Source
    digest: _Label | None = None
    """Of the bytes that a load will read; every worker of this release reports it."""
    size_bytes: _Count
    in_memory: bool
    """False: larger than the staging budget; only the page cache was warmed."""


class Operation(Message):
    """Work under way right now.

    Fields:
        kind: stage, pause, load, apply, resume, fence, probe, adapter or drain.
    """

    kind: Word
    version: _Label | None = None
    run_id: _Label | None = None
    running_seconds: _Seconds


class PauseState(Message):
    """Present while paused.

    Fields:
        mode: how requests were stopped; `keep` after a `wait` whose drain deadline passed.
        drain_timed_out: whether that happened.
        cache_kept: whoever drives wants keys and values of older weights to be read on.
    """

    mode: Annotated[PauseMode | Word, Field(union_mode="left_to_right")]
    drain_timed_out: bool = False
    cache_kept: bool = False
    holder: _Text
    paused_seconds: _Seconds
    lease_remaining_seconds: _Seconds


class Failure(Message):
    """A refusal of a stage, or the last failure of a load; gone after the next success.

    Fields:
        retry_after_seconds: when asking again may bring another answer; it grows from 10 s to 300 s
            for files that were refused and do not change.
    """

    version: _Label | None
    run_id: _Label | None = None
    reason: Annotated[Reason | Word, Field(union_mode="left_to_right")]
    message: Annotated[str, Field(max_length=1000)]
    age_seconds: _Seconds
    retry_after_seconds: _Seconds | None = None


class SwapTimings(Message):
    """The last completed swap, in seconds. `paused` spans from pause to resume."""

    version: _Label
    stage_seconds: _Seconds | None = None
    pause_seconds: _Seconds | None = None
    load_seconds: _Seconds | None = None
    resume_seconds: _Seconds | None = None
    paused_seconds: _Seconds | None = None


class LoadEffect(Message):
    """What the last load changed in the model, at the precision that is served.

    Fields:
        version / run_id: the weights that were loaded.
        compared_with / compared_with_run_id / compared_with_digest: the weights before.
        changed_share: estimated share of the elements whose stored value changed, 0 to 1; None: not
            comparable, see `why_not`. 0 may also stand for very few: see `unchanged`.
        unchanged: not one bit of the model has changed, and all of it was compared.
        compared_elements: elements that were looked at, all processes of the engine together.
        elements: elements of the parameters that were compared.
        why_not: why parameters could not be compared; empty if all were.
    """

    version: _Label
    run_id: _Label | None = None
    compared_with: _Label
    compared_with_run_id: _Label | None = None
    compared_with_digest: _Label | None = None
    changed_share: _Share = None
    unchanged: bool = False
    compared_elements: _Count = 0
    elements: _Count = 0
    why_not: _Text = ""


class ProbeReport(Message):
    """What the prompts of a `ProbeRequest` gave under the version in the engine.

    Fields:
        version, run_id, digest: the weights that were probed.
        compared_with: the version before, whose continuations were scored again; None if there was
            no baseline.
        finite: all log-probabilities are numbers.
        repetition: largest share of a continuation that one 4-gram makes up, 0 to 1.
        logprob_drift: mean absolute difference of the log-probabilities of the baseline's tokens.
        kl: mean Kullback-Leibler divergence of this version from the baseline over the baseline's
            most probable tokens, in nats.
        tokens: how many tokens were compared.
    """

    version: _Label
    run_id: _Label | None = None
    digest: _Label | None = None
    compared_with: _Label | None = None
    finite: bool
    repetition: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    logprob_drift: _Measure = None
    kl: _Measure = None
    tokens: _Count = 0


class RetiringAdapter(Message):
    """A version that new requests do not get any more, and the requests that still use it."""

    version: _Label
    requests: _Count


class AdapterState(Message):
    """One adapter name.

    Fields:
        version: what new requests get; None when the name was removed and only `retiring` is left.
        run_id: the training run that it belongs to, if one was named.
        requests: requests that use this version now, held ones included.
        retiring: versions that leave the engine as soon as their requests have ended.
    """

    name: _Label
    version: _Label | None
    run_id: _Label | None = None
    source: _AnySource = None
    digest: _Label | None = None
    size_bytes: _Count = 0
    requests: _Count = 0
    retiring: Annotated[
        tuple[RetiringAdapter, ...], Field(max_length=_MAX_ADAPTERS, fail_fast=True)
    ] = ()


class AdapterSlots(Message):
    """Room for adapters in the engine: each version takes one slot until it has left.

    Fields:
        max_rank: largest rank that fits.
    """

    total: _Count
    used: _Count
    max_rank: _Count


class AdapterFailure(Failure):
    """The last refusal of an adapter; gone after the next success under the same name."""

    name: _Label


class TransferState(Message):
    """Weights that come over a collective instead of from files.

    Fields:
        backend: vLLM's weight transfer engine.
        connected: a trainer's group was joined; a restart of the process loses it.
        updating: an update was begun and is not finished.
        updates: how many were finished since the process started.
    """

    backend: _Label
    connected: bool = False
    updating: bool = False
    updates: _Count = 0


class EngineInfo(Message):
    """What runs underneath."""

    name: Word = "vllm"
    version: _Label
    model: _Text
    world_size: _Count = 1


class WorkerState(Message):
    """`GET /v1/worker/state`, and the answer to every mutating call.

    Fields:
        protocol: of the worker's release; readers compare it with their own.
        pod_uid: uid of the pod that answers; None where the worker does not know it.
        instance: new for every process start; a change means that everything else started anew.
        admitted: whether the latch is open. `serving`, `pausing`, `paused` imply it.
        version: label of the weights in the engine; set after a load succeeded, None when the
            engine's weights are not to be trusted.
        run_id: the run that the version belongs to, if a run was named.
        digest: of the weights in the engine. None for weights that came over a collective, and
            while the engine's weights are not to be trusted.
        requests_running / requests_held: generating now / waiting for resume.
        stage_failure: The last refusal of a stage.
        earlier_stage_failures: Refusals of other versions before that one, newest first, the last one
            of each version of a run.
        adapter_slots: None on a worker that serves no adapters.
        effect: of the last load; None before the first.
        transfer: None on a worker that takes weights from files only.
    """

    protocol: Annotated[int, Field(ge=1, le=1_000_000)] = PROTOCOL_VERSION
    worker: _Text
    pod_uid: _Label | None = None
    instance: _Label
    uptime_seconds: _Seconds
    phase: Annotated[Phase | Word, Field(union_mode="left_to_right")]
    admitted: bool
    version: _Label | None
    run_id: _Label | None = None
    source: _AnySource = None
    digest: _Label | None = None
    staged: Staged | None = None
    operation: Operation | None = None
    requests_running: _Count = 0
    requests_held: _Count = 0
    pause: PauseState | None = None
    lease_expiries: _Count = 0
    epoch: Epoch | None = None
    management: Annotated[Management | Word, Field(union_mode="left_to_right")] = (
        Management.OPERATOR
    )
    stage_failure: Failure | None = None
    earlier_stage_failures: Annotated[
        tuple[Failure, ...], Field(max_length=_MAX_FAILURES, fail_fast=True)
    ] = ()
    load_failure: Failure | None = None
    timings: SwapTimings | None = None
    effect: LoadEffect | None = None
    probe: ProbeReport | None = None
    adapters: Annotated[
        tuple[AdapterState, ...], Field(max_length=_MAX_ADAPTERS, fail_fast=True)
    ] = ()
    adapter_slots: AdapterSlots | None = None
    adapter_failure: AdapterFailure | None = None
    transfer: TransferState | None = None
    engine: EngineInfo | None = None


class ErrorDetail(Message):
    """Why a call was refused, in words fit for a person."""

    reason: Annotated[Reason | Word, Field(union_mode="left_to_right")]
    message: Annotated[str, Field(max_length=1000)]
    retry_after_seconds: _Seconds | None = None


class ErrorReply(Message):
    """Body of every answer that is not 2xx: 4xx is a refusal, 5xx a failure of the engine."""

    error: ErrorDetail
    state: WorkerState | None = None
