"""What is asked of a worker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleet_worker.protocol.words import (
    Epoch,
    Holder,
    Message,
    PauseMode,
    RunId,
    Source,
    VersionLabel,
    WeightsDigest,
)


class StageRequest(Message):
    r"""`PUT /v1/worker/stage`: check a source and hold its bytes; answers when that is done.

    Serving, joining or paused. Staging another version replaces what is staged, also while it is
    still being read (`Superseded` for the caller that waits for it). The same version again joins
    the work under way or answers at once.

    Fields:
        run_id: the training run that the version belongs to.
        digest: what the files must have; without it, whatever they have is taken and reported.
    """

    version: VersionLabel
    run_id: RunId | None = None
    source: Source
    digest: WeightsDigest | None = None
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
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
    holder: Holder = "operator"
    epoch: Epoch


class ApplyRequest(Message):
    """`PUT /v1/worker/apply`: pause, load the staged version and resume, as one transaction.

    For strategies without a barrier. Refused before the engine is touched, the worker goes on with
    the weights that it has; the fields mean what they mean in `PauseRequest`.
    """

    version: VersionLabel
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
    mode: PauseMode
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)]
    holder: Annotated[str, Field(min_length=1, max_length=253)] = "operator"
    epoch: Epoch


class OpenRequest(Message):
    """`PUT /v1/worker/resume` (paused) and `/admit` (joining): serve, if this is the version."""

    version: VersionLabel
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
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
        run_id: the training run that the version belongs to.
        digest: as in `StageRequest`, over these two files.
    """

    version: VersionLabel
    run_id: RunId | None = None
    source: Source
    digest: WeightsDigest | None = None
    holder: Holder = "operator"
    epoch: Epoch


class AdapterRemoval(Message):
    """`DELETE /v1/worker/adapters/{name}`: serve it no more; running requests finish with it."""

    holder: Holder = "operator"
    epoch: Epoch
