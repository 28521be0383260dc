"""InferenceFleet: worker pods running vLLM on GPUs, and how new weights reach them.

`crds/inferencefleets.yaml` is the public form; a test holds the two equal.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from fleet_operator.api.container import PodFields, ResourceRequirements
from fleet_operator.api.depth import FreeMap
from fleet_operator.api.router import Router
from fleet_operator.api.serving import Serving
from fleet_operator.api.volumes import WeightVolume
from rlfleet_resources.base import Resource
from rlfleet_resources.fleet_status import TransitionStrategy
from rlfleet_resources.source import VersionLabel, WeightRoot, WeightSource

MAX_REPLICAS = 10_000


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
"""A number, or a share of the replicas; a worker can be recreated more than once, so up to 999%."""

Memory = (
    Annotated[int, Field(ge=1)]
    | Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}(\.[0-9]{1,9})?([KMGTPE]i|[kMGTPE])?$")]
)
"""Bytes, as a quantity that is not 0."""

PeerRate = (
    Annotated[int, Field(ge=10_000_000)]
    | Annotated[
        str,
        Field(
            pattern=r"^([1-9][0-9]{7,17}|[1-9][0-9]{1,17}(\.[0-9]{1,9})?Mi?"
            r"|[1-9][0-9]{0,17}(\.[0-9]{1,9})?[GTPE]i?)$"
        ),
    ]
)
"""Bytes per second, as a quantity of at least 10M: less is too slow for the readers that a worker may have."""

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
    env: Annotated[tuple[FreeMap, ...], Field(max_length=100)] = ()
    env_from: Annotated[tuple[FreeMap, ...], Field(max_length=20)] = ()
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    silence_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    load_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    log_level: Literal["Debug", "Info", "Warning", "Error"] | None = None
    log_format: Literal["JSON", "Text"] | None = None

    @property
    def options(self) -> dict[str, str]:
        """The values of `args` by name: vLLM takes `_` for `-`."""
        parts = (argument.partition("=") for argument in self.args)
        return {name.replace("_", "-"): value for name, _, value in parts}

    @property
    def scheme(self) -> str:
        """That of the public port of the workers."""
        return "https" if "--ssl-certfile" in self.options else "http"


class Transfer(Resource):
    """How a trainer sends weights to the engines directly. The backend has vLLM's own name."""

    backend: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z][a-z0-9_]*$")]


class PeerSettings(Resource):
    """Whether and how workers read versions from each other."""

    enabled: bool = False
    port: Annotated[int, Field(ge=1024, le=65_535)] = 8083
    max_store_readers: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    bytes_per_second: PeerRate | None = None


class ObjectStore(Resource):
    """How workers reach the object stores of `roots`."""

    secret_name: Annotated[str, Field(max_length=253)] = ""
    endpoint: Annotated[str, Field(max_length=253, pattern=r"^(https?://[A-Za-z0-9.:-]+)?$")] = ""


class Weights(Resource):
    """The directories, volumes and object stores from which workers load."""

    roots: Annotated[tuple[WeightRoot, ...], Field(min_length=1, max_length=16)]
    volumes: Annotated[tuple[WeightVolume, ...], Field(max_length=16)] = ()
    management: Literal["Operator", "External"] = "Operator"
    object_store: ObjectStore | None = None
    staging_memory: Memory | None = None
    loading: Literal["Full", "InPlace"] = "Full"
    driver_lease_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    transfer: Transfer | None = None
    peers: PeerSettings = PeerSettings()


PauseMode = Literal["Keep", "Wait", "Abort"]
DrainSeconds = Annotated[int, Field(ge=0, le=86_400)]


class Pause(Resource):
    """How generation stops before a load."""

    mode: PauseMode = "Keep"
    drain_timeout_seconds: DrainSeconds = 60

    def limit(self) -> int:
        """The longest time in seconds for which running requests continue before generation stops."""
        return self.drain_timeout_seconds if self.mode == "Wait" else 0


class Timeouts(Resource):
    """Longest duration of each phase of a rollout."""

    checkpoint_seconds: Annotated[int, Field(ge=1, le=MAX_CHECKPOINT_SECONDS)] = 3600
    stage_seconds: Annotated[int, Field(ge=1, le=86_400)] = 900
    pause_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    load_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600


class Adapters(Resource):
    """Slots for LoRA adapters in addition to the base weights."""

    max: Annotated[int, Field(ge=0, le=64)] = 0
    max_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = 16


Strategy = Literal[TransitionStrategy, "Canary"]


class Canary(Resource):
    """How the strategy Canary judges."""

    workers: IntOrPercent = 1
    then: TransitionStrategy = "Synchronized"
    prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=4000)], ...], Field(max_length=32)
    ] = ()
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 32
    max_repetition_percent: Annotated[int, Field(ge=0, le=100)] = 50
    max_logprob_drift_millinats: Annotated[int, Field(ge=0, le=MAX_MILLINATS)] = 2000
    max_kl_millinats: Annotated[int, Field(ge=0, le=MAX_MILLINATS)] = 2000


class Rollout(Resource):
    """How a new version reaches the workers."""

    strategy: Strategy = "Synchronized"
    canary: Canary = Canary()
    pause: Pause = Pause()
    max_unavailable: IntOrPercent = "25%"
    max_staging: IntOrPercent | None = None
    timeouts: Timeouts = Timeouts()
    max_failures: NoneOrPercent = 0
    on_failure: Literal["Halt", "Rollback"] = "Halt"

    @property
    def hold_seconds(self) -> float:
        """How long workers may hold their requests for one version."""
        timeouts = self.timeouts
        drain_seconds = self.pause.drain_timeout_seconds
        return timeouts.pause_seconds + drain_seconds + timeouts.load_seconds

    @property
    def longest_hold_seconds(self) -> float:
        """How long workers may hold their requests: for a rollout, for the way back, and for the next version
        that all are ready for.
        """
        return 3 * self.hold_seconds


class Staleness(Resource):
    """How far the weights of serving workers may be behind the desired version.

    Fields:
        max_lag_versions, max_lag_seconds: None: no limit.
    """

    max_lag_versions: Annotated[int, Field(ge=0, le=8)] | None = None
    max_lag_seconds: Annotated[int, Field(ge=30, le=604_800)] | None = None
    action: Literal["Report", "Refuse"] = "Report"

    @property
    def refuses(self) -> bool:
        """Whether workers refuse requests beyond the limits."""
        return self.action == "Refuse"


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
    """How often the operator recreates failed workers."""

    max_per_worker: Annotated[int, Field(ge=0, le=100)] = 5
    max_per_fleet: Recreations = 10
    window_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600


@dataclass(frozen=True, slots=True)
class PodOverlay:
    """A fragment of a pod template as compact JSON. As Python objects it would take 25 times the memory for as
    long as the fleet exists.
    """

    text: str = "{}"

    def read(self) -> dict[str, Any]:
        """The fragment."""
        found: dict[str, Any] = json.loads(self.text)
        return found


def _to_overlay(value: Any) -> Any:
    if isinstance(value, dict):
        return PodOverlay(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return value


NO_OVERLAY = PodOverlay()
Overlay = Annotated[
    PodOverlay,
    BeforeValidator(_to_overlay),
    PlainSerializer(PodOverlay.read, return_type=dict[str, Any]),
    WithJsonSchema({"type": "object", "additionalProperties": True, "default": {}}),
]


class FleetSpec(Resource):
    """The desired state of a fleet."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    progress_deadline_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    model: Model
    engine: Engine = Engine()
    resources: ResourceRequirements = ResourceRequirements()
    pod: PodFields = PodFields()
    weights: Weights
    adapters: Adapters = Adapters()
    rollout: Rollout = Rollout()
    staleness: Staleness | None = None
    update: Update = Update()
    recycle: Recycle = Recycle()
    serving: Serving = Serving()
    router: Router | None = None
    pod_overlay: Overlay = NO_OVERLAY

    @property
    def hearing_seconds(self) -> float:
        """How often workers hear about the desired versions at least. One may be lost."""
        most = self.staleness.max_lag_seconds if self.staleness is not None else None
        return most / 3 if most is not None else math.inf

    @property
    def is_external(self) -> bool:
        """Whether a trainer updates the workers."""
        return self.weights.management == "External"
