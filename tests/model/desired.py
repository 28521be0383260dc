"""The objects that users and trainers write, at one moment, and as watches deliver them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tests.model.fake_pods import EPOCH_START

from fleet_operator.api.fleet import FleetSpec, Rollout
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.observed import Watched, WeightsView
from rlfleet_resources.weights_status import WeightsStatus

BASE_UID = "weights"
NO_STATUS = WeightsStatus()
NOT_WATCHED = Watched()


@lru_cache(maxsize=2000)
def _fleet_spec(written: str) -> FleetSpec:
    return FleetSpec.model_validate_json(written)


@lru_cache(maxsize=2000)
def _weights_spec(written: str) -> WeightsSpec:
    return WeightsSpec.model_validate_json(written)


@dataclass(frozen=True)
class Asked:
    """One WeightVersion object. `spec` is JSON."""

    spec: str
    generation: int = 1
    retry: str = ""

    def changed(self, fields: dict[str, Any]) -> Asked:
        """With other fields, and a generation more."""
        spec = json.dumps(json.loads(self.spec) | fields)
        return replace(self, spec=spec, generation=self.generation + 1)

    def view(
        self, uid: str, status: WeightsStatus = NO_STATUS, watched: Watched = NOT_WATCHED
    ) -> WeightsView:
        """As the planners see it."""
        return WeightsView(
            name=uid,
            namespace="rl",
            uid=uid,
            generation=self.generation,
            created_at=EPOCH_START,
            spec=_weights_spec(self.spec),
            retry=self.retry,
            status=status,
            watched=watched,
        )


@dataclass(frozen=True)
class Desired:
    """The objects of one fleet. Immutable, so that a late reader can still see an older state.

    Shapes: weights: uid → WeightVersion; that of the base weights has `BASE_UID`, and another uid
    after it was deleted and created again.

    Fields:
        generation: of the fleet.
    """

    fleet: str
    weights: tuple[tuple[str, Asked], ...] = ()
    generation: int = 1

    @property
    def fleet_spec(self) -> FleetSpec:
        return _fleet_spec(self.fleet)

    @property
    def base(self) -> Asked | None:
        return dict(self.weights).get(self.base_uid)

    @property
    def base_uid(self) -> str:
        """Uid of the WeightVersion of the base weights; `BASE_UID` without one."""
        found = (uid for uid, _ in self.weights if uid.startswith(BASE_UID))
        return next(found, BASE_UID)

    @property
    def base_spec(self) -> WeightsSpec | None:
        return _weights_spec(self.base.spec) if self.base else None

    @property
    def version(self) -> str:
        """The desired version of the base weights; without a WeightVersion the model's own."""
        return self.base_spec.version if self.base_spec else self.fleet_spec.model.version

    def with_fleet(self, **fields: Any) -> Desired:
        """With other fields of the fleet's spec."""
        spec = json.dumps(json.loads(self.fleet) | fields)
        return replace(self, fleet=spec, generation=self.generation + 1)

    def with_weights(self, uid: str, asked: Asked | None) -> Desired:
        """With another WeightVersion in place of the one of this uid; None deletes it."""
        weights = {**dict(self.weights), uid: asked}
        return replace(self, weights=tuple((u, a) for u, a in weights.items() if a is not None))


def base_weights(version: str) -> Asked:
    """A WeightVersion for the base weights."""
    spec = {"fleetRef": {"name": "policy"}, "version": version}
    return Asked(json.dumps(spec | {"source": {"path": "/weights/step_{version}"}}))


def lora_weights(name: str, version: str) -> Asked:
    """A WeightVersion for an adapter."""
    spec = {"fleetRef": {"name": "policy"}, "adapter": name, "version": version}
    return Asked(json.dumps(spec | {"source": {"path": f"/weights/{name}/step_{{version}}"}}))


def fleet_of(replicas: int, management: str, rollout: dict[str, Any], **spec: Any) -> str:
    """A fleet's spec as JSON."""
    return json.dumps(
        {
            "replicas": replicas,
            "model": {"name": "m", "source": {"path": "/models/base"}},
            "weights": {"roots": ["/weights"], "management": management},
            "rollout": rollout,
            "adapters": {"max": 2},
        }
        | spec
    )


@lru_cache(maxsize=200)
def rollout_of(desired: Desired) -> Rollout:
    """The settings that hold: those of the fleet under those of its WeightVersion."""
    settings, weights = desired.fleet_spec.rollout, desired.base_spec
    return weights.rollout.over(settings) if weights else settings
