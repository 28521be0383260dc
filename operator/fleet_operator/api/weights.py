"""WeightVersion: a moving pointer, which a trainer patches at each step.

`crds/weightversions.yaml` is the public form; a test holds the two equal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_operator.api.fleet import (
    MAX_CHECKPOINT_SECONDS,
    DrainSeconds,
    IntOrPercent,
    NoneOrPercent,
    PauseMode,
    Rollout,
    Strategy,
)
from rlfleet_resources.base import Resource
from rlfleet_resources.retention import Retention
from rlfleet_resources.source import ManifestDigest, VersionLabel, WeightSource


class FleetReference(Resource):
    """An InferenceFleet of the same namespace."""

    name: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    ]


class PauseOverrides(Resource):
    """How generation stops before a load of this version."""

    mode: PauseMode | None = None
    drain_timeout_seconds: DrainSeconds | None = None


class TimeoutOverrides(Resource):
    """Longest duration of each phase for this version."""

    checkpoint_seconds: Annotated[int, Field(ge=1, le=MAX_CHECKPOINT_SECONDS)] | None = None
    stage_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    pause_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    load_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None


class RolloutOverrides(Resource):
    """Settings that differ from the fleet's `rollout` for this version."""

    strategy: Strategy | None = None
    pause: PauseOverrides = PauseOverrides()
    max_unavailable: IntOrPercent | None = None
    max_staging: IntOrPercent | None = None
    timeouts: TimeoutOverrides = TimeoutOverrides()
    max_failures: NoneOrPercent | None = None
    on_failure: Literal["Halt", "Rollback"] | None = None

    def over(self, defaults: Rollout) -> Rollout:
        """The fleet's settings with these on top."""
        if self == _NO_OVERRIDES:
            return defaults
        own = self.model_dump(exclude_none=True, exclude={"pause", "timeouts"})
        pause = self.pause.model_dump(exclude_none=True)
        timeouts = self.timeouts.model_dump(exclude_none=True)
        return defaults.model_copy(
            update=own
            | {
                "pause": defaults.pause.model_copy(update=pause),
                "timeouts": defaults.timeouts.model_copy(update=timeouts),
            }
        )


_NO_OVERRIDES = RolloutOverrides()

AdapterName = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$")
]
"""The model name of requests for the adapter; empty for the base weights."""


class WeightsSpec(Resource):
    """The weights that a fleet should serve: its base weights, or those of a LoRA adapter."""

    fleet_ref: FleetReference
    adapter: AdapterName = ""
    version: VersionLabel
    source: WeightSource
    digest: Annotated[ManifestDigest, Field(max_length=71)] | None = None
    run_id: VersionLabel | None = None
    rollback_to: VersionLabel | None = None
    suspend: bool = False
    retention: Retention | None = None
    rollout: RolloutOverrides = RolloutOverrides()
