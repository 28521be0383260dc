"""What people and trainers ask for, as it stands at one moment, and as watches bring it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tests.model.fake_pods import EPOCH_START

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec, WeightsStatus
from fleet_operator.core.observed import Watched, WeightsView

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
class Wanted:
    """The objects of one fleet. Immutable, so that an older state can still be seen by somebody.

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
        """Uid of the WeightVersion of the base weights; `BASE_UID` if there is none."""
        found = (uid for uid, _ in self.weights if uid.startswith(BASE_UID))
        return next(found, BASE_UID)

    @property
    def base_spec(self) -> WeightsSpec | None:
        return _weights_spec(self.base.spec) if self.base else None

    @property
    def version(self) -> str:
        """The wanted version of the base weights; the model's own if nobody asks."""
        return self.base_spec.version if self.base_spec else self.fleet_spec.model.version

    def with_fleet(self, **fields: Any) -> Wanted:
        """With other fields of the fleet's spec."""
        spec = json.dumps(json.loads(self.fleet) | fields)
        return replace(self, fleet=spec, generation=self.generation + 1)

    def with_weights(self, uid: str, asked: Asked | None) -> Wanted:
        """With another WeightVersion in place of the one of this uid; None deletes it."""
        weights = {**dict(self.weights), uid: asked}
        return replace(self, weights=tuple((u, a) for u, a in weights.items() if a is not None))


def base_weights(version: str) -> Asked:
    """A WeightVersion for the base weights."""
    spec = {"fleetRef": {"name": "policy"}, "version": version}
    return Asked(json.dumps(spec | {"source": {"path": "/weights/step_{version}"}}))


def adapter_weights(name: str, version: str) -> Asked:
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
