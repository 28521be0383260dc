"""InferenceFleet: worker pods running vLLM on GPUs, and how new weights reach them.

`crds/inferencefleets.yaml` is the public form; a test holds the two equal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fleet_operator.api.base import Resource, Timestamp
from fleet_operator.api.conditions import Condition
from fleet_operator.api.container import (
    EnvironmentSource,
    EnvironmentVariable,
    PodFields,
    ResourceRequirements,
)
from fleet_operator.api.serving import Serving
from fleet_operator.api.source import AbsolutePath, ManifestDigest, VersionLabel, WeightSource
from fleet_operator.api.volumes import WeightVolume

MAX_REPLICAS = 10_000
MAX_LAGGARDS = 20
MAX_RECYCLED = 20
MAX_PINNED = 100
MAX_VERSIONS = 20
MAX_SOURCES_IN_USE = 100


IntOrPercent = (
    Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    | Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$")]
)
"""A number, or a share of the replicas; at least 1 or 1%."""

NoneOrPercent = (
    Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
    | Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")]
)
"""A number, or a share of the replicas; may be 0."""

Recreations = (
    Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
    | Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,2})%$")]
)
"""A number, or a share of the replicas; a worker can be recreated more than once, hence up to 999%."""

Memory = (
    Annotated[int, Field(ge=1)]
    | Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?$")]
)
"""Bytes, as a quantity that is not 0."""

MAX_CHECKPOINT_SECONDS = 604_800
"""A week."""

MAX_MILLINATS = 1_000_000
"""No two models are further apart than this."""


class Model(Resource):
    """The model that the fleet serves before any WeightVersion."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    source: WeightSource
    version: VersionLabel = "base"


class Engine(Resource):
    """How vLLM is started."""

    image: Annotated[str, Field(max_length=500)] = ""
    args: Annotated[tuple[Annotated[str, Field(max_length=2000)], ...], Field(max_length=100)] = ()
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=100)] = ()
    env_from: Annotated[tuple[EnvironmentSource, ...], Field(max_length=20)] = ()
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    silence_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    load_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    log_level: Literal["Debug", "Info", "Warning", "Error"] | None = None
    log_format: Literal["JSON", "Text"] | None = None


class Transfer(Resource):
    """How a trainer sends weights to the engines directly. The backend has vLLM's own name."""

    backend: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z][a-z0-9_]*$")]


class Weights(Resource):
    """What workers may load from."""

    roots: Annotated[tuple[AbsolutePath, ...], Field(min_length=1, max_length=16)]
    volumes: Annotated[tuple[WeightVolume, ...], Field(max_length=16)] = ()
    management: Literal["Operator", "External"] = "Operator"
    staging_memory: Memory | None = None
    driver_lease_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    transfer: Transfer | None = None


class Pause(Resource):
    """How generation stops before a load."""

    mode: Literal["Keep", "Wait", "Abort"] = "Keep"
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60


class Timeouts(Resource):
    """Longest duration of each phase of a rollout."""

    checkpoint_seconds: Annotated[int, Field(ge=1, le=MAX_CHECKPOINT_SECONDS)] = 3600
    stage_seconds: Annotated[int, Field(ge=1, le=86_400)] = 900
    pause_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    load_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600


class Adapters(Resource):
    """Room for LoRA adapters beside the base weights."""

    max: Annotated[int, Field(ge=0, le=64)] = 0
    max_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = 16


class Canary(Resource):
    """How the strategy Canary judges."""

    workers: IntOrPercent = 1
    then: Literal["Synchronized", "InFlight", "Rolling"] = "Synchronized"
    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...], Field(max_length=32)
    ] = ()
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 32
    max_repetition_percent: Annotated[int, Field(ge=0, le=100)] = 50
    max_logprob_drift_millinats: Annotated[int, Field(ge=0, le=MAX_MILLINATS)] = 2000
    max_kl_millinats: Annotated[int, Field(ge=0, le=MAX_MILLINATS)] = 2000


class Rollout(Resource):
    """How a new version reaches the workers."""

    strategy: Literal["Synchronized", "InFlight", "Rolling", "Canary"] = "Synchronized"
    canary: Canary = Canary()
    pause: Pause = Pause()
    max_unavailable: IntOrPercent = "25%"
    timeouts: Timeouts = Timeouts()
    max_failures: NoneOrPercent = 0
    on_failure: Literal["Halt", "Rollback"] = "Halt"

    @property
    def longest_hold_seconds(self) -> float:
        """How long workers may hold their requests: for a rollout, and for the way back."""
        timeouts = self.timeouts
        drain_seconds = self.pause.drain_timeout_seconds
        return 2 * (timeouts.pause_seconds + drain_seconds + timeouts.load_seconds)


class Update(Resource):
    """How workers are replaced and removed.

    Fields:
        paused: no worker is replaced for its template; new ones get today's.
        restarted_at: every change of it replaces all workers, built by today's operator.
    """

    type: Literal["RollingUpdate", "OnDelete"] = "RollingUpdate"
    max_unavailable: NoneOrPercent = 1
    max_surge: NoneOrPercent = 0
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    paused: bool = False
    restarted_at: Annotated[str, Field(max_length=64)] = ""

    @property
    def is_held(self) -> bool:
        """Whether workers of an older template stay."""
        return self.paused or self.type == "OnDelete"


class Recycle(Resource):
    """How often workers that fail are made anew."""

    max_per_worker: Annotated[int, Field(ge=0, le=100)] = 5
    max_per_fleet: Recreations = 10
    window_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600


class FleetSpec(Resource):
    """What a person wants of a fleet."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    progress_deadline_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    model: Model
    engine: Engine = Engine()
    resources: ResourceRequirements = ResourceRequirements()
    pod: PodFields = PodFields()
    weights: Weights
    adapters: Adapters = Adapters()
    rollout: Rollout = Rollout()
    update: Update = Update()
    recycle: Recycle = Recycle()
    serving: Serving = Serving()
    pod_overlay: dict[str, Any] = Field(default_factory=dict)


class WorkerCounts(Resource):
    """Workers by what they do now; `total` counts pods that exist and are not being deleted."""

    total: int = 0
    serving: int = 0
    joining: int = 0
    staging: int = 0
    paused: int = 0
    loading: int = 0
    broken: int = 0
    quarantined: int = 0


class Laggard(Resource):
    """A worker that is not where it should be."""

    pod: str
    version: str | None = None
    state: str
    reason: str
    message: str = ""


class RecycledWorker(Resource):
    """A worker whose pod was made anew because it failed.

    Fields:
        uid: of the last pod that was deleted for it.
        count: times within the window.
    """

    pod: str
    uid: str
    count: int
    last_at: Timestamp


class AppliedWeights(Resource):
    """The weights that all admitted workers held last; workers that join load these.

    Fields:
        applied_at: when all were first seen to hold them; absent while none has served them.
    """

    version: str
    source: WeightSource
    digest: ManifestDigest | None = None
    run_id: str | None = None
    applied_at: Timestamp | None = None


class ServedVersion(Resource):
    """Weights that admitted workers hold, and how many do."""

    version: str
    run_id: str | None = None
    digest: ManifestDigest | None = None
    workers: int


class SourceInUse(Resource):
    """Files that workers read or may read again, and the version that they are."""

    version: str
    run_id: str | None = None
    source: WeightSource


class PinnedWeights(Resource):
    """What a version of a run has stood for since the fleet first saw it.

    Fields:
        source: as it was asked for.
        commit: what a revision that may move stood for then; empty if the source cannot move.
    """

    version: str
    run_id: str | None = None
    digest: ManifestDigest
    source: WeightSource
    commit: str = ""


class FleetStatus(Resource):
    """What the operator sees of a fleet.

    Fields:
        operator: namespace and name of the Lease whose holder drives the fleet, as `ns/name`.
    """

    observed_generation: int = 0
    operator: str = ""
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    selector: str = ""
    desired_version: str | None = None
    desired_run_id: str | None = None
    applied_version: str | None = None
    applied: AppliedWeights | None = None
    versions: tuple[ServedVersion, ...] = ()
    sources_in_use: tuple[SourceInUse, ...] = ()
    pinned: tuple[PinnedWeights, ...] = ()
    workers: WorkerCounts = WorkerCounts()
    laggards: tuple[Laggard, ...] = ()
    recycled: tuple[RecycledWorker, ...] = ()
    endpoint: str = ""
    conditions: tuple[Condition, ...] = ()
