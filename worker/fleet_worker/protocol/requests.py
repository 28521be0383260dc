"""Requests of the worker's admin API."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fleet_worker.protocol.paths import (
    ADAPTERS_PATH,
    ADMIT_PATH,
    APPLY_PATH,
    FENCE_PATH,
    LOAD_PATH,
    PAUSE_PATH,
    PROBE_PATH,
    RESUME_PATH,
    STAGE_PATH,
)
from fleet_worker.protocol.types import (
    Epoch,
    Holder,
    Message,
    PauseMode,
    RunId,
    WeightsDigest,
)
from rlfleet_resources.source import Source, VersionLabel

MAX_PEERS = 8


class Peer(Message):
    """A worker that serves versions to other workers.

    Fields:
        host, port: the address of its pod, and its peer port.
        pod_uid: uid of its pod, which the signature of a read names.
    """

    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65_535)]
    pod_uid: Annotated[str, Field(min_length=1, max_length=253)]


class Request(Message):
    """Base of the requests that change a worker.

    Fields:
        method, path: where the request goes. An adapter's name follows the path.
    """

    method: ClassVar[str] = "PUT"
    path: ClassVar[str]


class StageRequest(Request):
    r"""`PUT /v1/worker/stage`: check a source and keep its bytes; answers when that is done.

    Allowed while serving, joining or paused. Staging another version replaces the staged one, also
    while the worker still reads it: its caller gets `Superseded`. A repeated call for the same
    version waits for the work under way, or answers at once.

    Fields:
        run_id: the training run that the version belongs to.
        digest: that the files must have. Without it the worker accepts and reports any digest.
        peers: workers of the fleet to read the bytes from, the best one first. Then the worker does not
            read the source. They count only with a digest: it decides which bytes are right.
    """

    path: ClassVar[str] = STAGE_PATH

    version: VersionLabel
    run_id: RunId | None = None
    source: Source
    digest: WeightsDigest | None = None
    peers: Annotated[tuple[Peer, ...], Field(max_length=MAX_PEERS)] = ()
    epoch: Epoch


class PauseRequest(Request):
    """`PUT /v1/worker/pause`: stop generating. On a paused worker it renews the lease.

    Fields:
        drain_timeout_seconds: how long `wait` may take. Then the pause falls back to `keep`.
        lease_seconds: time for the next renewal. Without one the worker serves again if its weights
            are untouched, and otherwise closes its latch.
        holder: name of the caller that drives the worker, shown to a second one.
    """

    path: ClassVar[str] = PAUSE_PATH

    mode: PauseMode
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)]
    holder: Holder = "operator"
    epoch: Epoch


class LoadRequest(Request):
    """`PUT /v1/worker/load`: put the staged version into the engine, while paused or joining.

    A failure inside the engine answers 500. Before that answer the worker tries once to reload its
    last good version. It is then `joining` on that version with `load_failure` set, or ends its process.
    """

    path: ClassVar[str] = LOAD_PATH

    version: VersionLabel
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
    holder: Holder = "operator"
    epoch: Epoch


class ApplyRequest(Request):
    """`PUT /v1/worker/apply`: pause, load the staged version and resume, as one transaction.

    For strategies without a barrier. After a refusal before the load, the worker serves its present
    weights again. The fields are those of `PauseRequest`.
    """

    path: ClassVar[str] = APPLY_PATH

    version: VersionLabel
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
    mode: PauseMode
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    lease_seconds: Annotated[float, Field(gt=0, le=86_400)]
    holder: Annotated[str, Field(min_length=1, max_length=253)] = "operator"
    epoch: Epoch


class OpenRequest(Request):
    """The fields of `ResumeRequest` and `AdmitRequest`."""

    version: VersionLabel
    run_id: RunId | None = None
    digest: WeightsDigest | None = None
    holder: Holder = "operator"
    epoch: Epoch


class ResumeRequest(OpenRequest):
    """`PUT /v1/worker/resume`: a paused worker serves again, if the engine has this version."""

    path: ClassVar[str] = RESUME_PATH


class AdmitRequest(OpenRequest):
    """`PUT /v1/worker/admit`: a joining worker serves, if the engine has this version."""

    path: ClassVar[str] = ADMIT_PATH


class FenceRequest(Request):
    """`PUT /v1/worker/fence`: close the latch.

    The worker refuses new requests at once. Running ones may finish within `drain_timeout_seconds`.
    After that they end with the tokens that they have.
    """

    path: ClassVar[str] = FENCE_PATH

    reason: Annotated[str, Field(min_length=1, max_length=500)]
    drain_timeout_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0
    epoch: Epoch


class PromptsRequest(Request):
    """`PUT /v1/worker/probe`: run canary prompts on the weights in the engine; keep the results.

    Allowed while serving or joining; invisible to clients. The tokens of the baseline are scored again.

    Fields:
        prompts: at most 32 texts.
        max_tokens: length of the greedy continuation of each.
        compare_with / compare_with_run_id / compare_with_digest: the weights whose answers are
            the baseline. Without answers of them there is no comparison.
    """

    path: ClassVar[str] = PROBE_PATH

    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...],
        Field(min_length=1, max_length=32),
    ]
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 32
    compare_with: VersionLabel
    compare_with_run_id: RunId | None = None
    compare_with_digest: WeightsDigest | None = None
    epoch: Epoch


class AdapterRequest(Request):
    """`PUT /v1/worker/adapters/{name}`: serve a version of a LoRA adapter under a stable name.

    Allowed while joining, serving or paused. The worker first checks and copies the files; requests
    run meanwhile. Then the version gets a slot of the engine, and new requests use it. Running
    requests keep the version that they began with. After the last of them, that version leaves the
    engine and its files are deleted. After a refusal the worker keeps serving the version before.

    A restarted worker has no adapters: load them before you admit it.

    Fields:
        source: holds `adapter_config.json` and `adapter_model.safetensors`.
        run_id: the training run that the version belongs to.
        digest: as in `StageRequest`, over these two files.
        stage_only: check and copy the files, report their digest, and keep serving the version
            before. A later request for the same weights serves this copy.
    """

    path: ClassVar[str] = ADAPTERS_PATH

    version: VersionLabel
    run_id: RunId | None = None
    source: Source
    digest: WeightsDigest | None = None
    stage_only: bool = False
    holder: Holder = "operator"
    epoch: Epoch


class AdapterRemoval(Request):
    """`DELETE /v1/worker/adapters/{name}`: refuse new requests for it; running ones finish."""

    method: ClassVar[str] = "DELETE"
    path: ClassVar[str] = ADAPTERS_PATH

    holder: Holder = "operator"
    epoch: Epoch
