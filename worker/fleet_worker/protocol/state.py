"""Answers of a worker: its state, or the reason of a refusal.

A reader does not trust an answer: every text, list and number is bounded, and a word that this
release does not know stays text (`Word`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleet_worker.protocol.measurements import LoadEffect, PromptsReport, SwapTimings
from fleet_worker.protocol.types import (
    PROTOCOL_VERSION,
    AnySource,
    Count,
    Epoch,
    Label,
    Management,
    Message,
    PauseMode,
    Phase,
    Reason,
    Remark,
    Seconds,
    Text,
    Word,
)

MOST_ADAPTERS = 64
"""The largest `spec.adapters.max`."""
_OTHER_BYTES = 48 * 1024
"""A state without adapters: up to 18 failures and refusals of 1,000 characters each, 8 remarks of 500, and
two sources of 1,024. A typical one has 2 KiB."""
_ADAPTER_BYTES = 4 * 1024
"""An adapter with its staged version: two sources of 1,024 characters, digests, and a refusal of 1,000. A
typical one has less than 1 KiB."""
_OTHER_PARTS = 4096
_ADAPTER_PARTS = 64


def max_answer_bytes(adapters: int) -> int:
    """The longest answer of a worker with this `spec.adapters.max`. One slot is for a version that leaves."""
    return _OTHER_BYTES + _ADAPTER_BYTES * (adapters + 1 if adapters else 0)


def max_answer_parts(adapters: int) -> int:
    """How many lists and objects an answer may have, counted by their brackets. A message has some, too."""
    return _OTHER_PARTS + _ADAPTER_PARTS * adapters


MAX_ANSWER_BYTES = max_answer_bytes(MOST_ADAPTERS)
"""No answer is longer."""
_MAX_ADAPTERS = 1024
_MAX_FAILURES = 16
_MAX_ADAPTER_FAILURES = 64
_MAX_REMARKS = 8
MAX_SERVED = 8
MAX_REFUSED_PEERS = 8


class Staged(Message):
    """A version that passed all checks and waits for its load."""

    version: Label
    run_id: Label | None = None
    source: AnySource
    digest: Label | None = None
    """Digest of the bytes that a load will read. Every worker of this release reports it."""
    size_bytes: Count
    in_memory: bool
    """False: the version is larger than the staging budget, and is in the page cache only."""
    read_bytes: Count | None = None
    """Bytes that the stage has read from the store: those of a delta, and of its base unless the worker held it."""
    copies: Text | None = None
    """How a load will copy the bytes to the device, and why. None until the engine's processes hold them."""
    read_from: Label | None = None
    """Uid of the pod that the bytes came from. None: from the store."""


class Operation(Message):
    """Work under way right now.

    Fields:
        kind: stage, pause, load, apply, resume, fence, probe, stage-adapter, adapter or drain.
    """

    kind: Word
    version: Label | None = None
    run_id: Label | None = None
    running_seconds: Seconds


class PauseState(Message):
    """Present while paused.

    Fields:
        mode: how requests were stopped; `keep` after a `wait` that reached its drain timeout.
        drain_timed_out: whether `wait` reached its drain timeout.
        cache_kept: whether later requests may read keys and values of older weights, as the driver
            demands.
    """

    mode: Annotated[PauseMode | Word, Field(union_mode="left_to_right")]
    drain_timed_out: bool = False
    cache_kept: bool = False
    holder: Text
    paused_seconds: Seconds
    lease_remaining_seconds: Seconds


class Failure(Message):
    """A refusal of a stage, or the last failure of a load. The next success removes it.

    Fields:
        retry_after_seconds: time after which a retry may succeed. It grows from 10 s to 300 s for
            refused files that do not change.
    """

    version: Label | None
    run_id: Label | None = None
    reason: Annotated[Reason | Word, Field(union_mode="left_to_right")]
    message: Annotated[str, Field(max_length=1000)]
    age_seconds: Seconds
    retry_after_seconds: Seconds | None = None


class RetiringAdapter(Message):
    """A version that only running requests still use, and their number."""

    version: Label
    requests: Count


class AdapterState(Message):
    """One adapter name.

    Fields:
        version: that new requests get. None if there is only `staged` or `retiring`.
        run_id: the training run that the version belongs to, if the request named one.
        requests: number of requests that use this version now, held ones included.
        staged: the version whose files the worker holds, checked and not served yet.
        retiring: versions that leave the engine when their last request ends.
    """

    name: Label
    version: Label | None
    run_id: Label | None = None
    source: AnySource = None
    digest: Label | None = None
    size_bytes: Count = 0
    requests: Count = 0
    staged: Staged | None = None
    retiring: Annotated[
        tuple[RetiringAdapter, ...], Field(max_length=_MAX_ADAPTERS, fail_fast=True)
    ] = ()


class AdapterSlots(Message):
    """Room for adapters in the engine. Each version takes one slot until it leaves the engine.

    Fields:
        max_rank: largest rank that fits.
    """

    total: Count
    used: Count
    max_rank: Count


class AdapterFailure(Failure):
    """A refusal of a version of an adapter, or a failure of its load.

    It stays until this version is staged, any version of the same name is served, or the name is
    removed.
    """

    name: Label


class TransferState(Message):
    """State of the transfer of weights over a collective, instead of from files.

    Fields:
        backend: vLLM's weight transfer engine.
        connected: whether the worker joined a trainer's group. A restart of the process loses it.
        run_id: the run of this group. Weights that come over it belong to it.
        updating: whether an update has begun and is not finished.
        updates: number of updates finished since the process started.
    """

    backend: Label
    connected: bool = False
    run_id: Label | None = None
    updating: bool = False
    updates: Count = 0


class RefusedPeer(Message):
    """A peer that the worker does not ask again for a version.

    Fields:
        pod_uid: of the peer.
        digest: of the version.
        reason: `PeerUnreadable` if it did not send the bytes; any other if it sent other ones.
    """

    pod_uid: Label
    digest: Label
    reason: Annotated[Reason | Word, Field(union_mode="left_to_right")]
    message: Annotated[str, Field(max_length=300)]


class PeerState(Message):
    """The versions that the worker serves to its peers, and its reads from them.

    Fields:
        port: that peers read on.
        serves: digests of the versions that they may read now, also of one that the worker still reads.
        reads_from: uid of the pod that the running stage reads from.
        refused: the newest ones first.
    """

    port: Annotated[int, Field(ge=1, le=65_535)]
    serves: Annotated[tuple[Label, ...], Field(max_length=MAX_SERVED, fail_fast=True)] = ()
    reads_from: Label | None = None
    refused: Annotated[
        tuple[RefusedPeer, ...], Field(max_length=MAX_REFUSED_PEERS, fail_fast=True)
    ] = ()


class EngineInfo(Message):
    """The engine that the worker runs."""

    name: Word = "vllm"
    version: Label
    model: Text
    world_size: Count = 1


class WorkerState(Message):
    """`GET /v1/worker/state`, and the answer to every mutating call.

    Fields:
        protocol: version of the protocol that the worker's release has.
        pod_uid: uid of the pod that answers. None if the worker does not know it.
        instance: new for every process start. After a change all other fields start again.
        admitted: whether the latch is open. `serving`, `pausing`, `paused` imply it.
        version: label of the weights in the engine, set after a successful load. None while the
            engine's weights are not trusted.
        run_id: the run that the version belongs to, if a call named one. Of weights that came over a
            collective it is the run of their group.
        digest: of the weights in the engine. None for weights that came over a collective, and
            while the engine's weights are not trusted.
        remarks: sentences about the files of the weights in the engine: unread keys of config.json, unused end
            tokens, casts, and no room in memory.
        limits_lag: whether the worker refuses requests by the lag of its weights. None: the operator has
            named no desired versions.
        requests_running / requests_held: number that generate now / that wait for resume.
        sessions: number of sessions (`X-Session-ID`) with a request in the last 5 minutes.
        stage_failure: the last refusal of a stage.
        earlier_stage_failures: earlier refusals, newest first, the last one of each other version of
            a run.
        adapter_slots: None on a worker that serves no adapters.
        adapter_failure: the last refusal of an adapter.
        adapter_failures: the last refusal of each version of each adapter, newest first.
        effect: of the last load. None before the first.
        transfer: None on a worker that takes weights from files only.
        peers: None on a worker without a peer port.
    """

    protocol: Annotated[int, Field(ge=1, le=1_000_000)] = PROTOCOL_VERSION
    worker: Text
    pod_uid: Label | None = None
    instance: Label
    uptime_seconds: Seconds
    phase: Annotated[Phase | Word, Field(union_mode="left_to_right")]
    admitted: bool
    version: Label | None
    run_id: Label | None = None
    source: AnySource = None
    digest: Label | None = None
    remarks: Annotated[tuple[Remark, ...], Field(max_length=_MAX_REMARKS, fail_fast=True)] = ()
    staged: Staged | None = None
    operation: Operation | None = None
    limits_lag: bool | None = None
    requests_running: Count = 0
    requests_held: Count = 0
    sessions: Count = 0
    pause: PauseState | None = None
    lease_expiries: Count = 0
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
    probe: PromptsReport | None = None
    adapters: Annotated[
        tuple[AdapterState, ...], Field(max_length=_MAX_ADAPTERS, fail_fast=True)
    ] = ()
    adapter_slots: AdapterSlots | None = None
    adapter_failure: AdapterFailure | None = None
    adapter_failures: Annotated[
        tuple[AdapterFailure, ...], Field(max_length=_MAX_ADAPTER_FAILURES, fail_fast=True)
    ] = ()
    transfer: TransferState | None = None
    peers: PeerState | None = None
    engine: EngineInfo | None = None


class ErrorDetail(Message):
    """The reason of a refusal, and a message for its reader."""

    reason: Annotated[Reason | Word, Field(union_mode="left_to_right")]
    message: Annotated[str, Field(max_length=1000)]
    retry_after_seconds: Seconds | None = None


class ErrorReply(Message):
    """Body of every answer that is not 2xx. 4xx is a refusal, 5xx a failure of the engine."""

    error: ErrorDetail
    state: WorkerState | None = None
