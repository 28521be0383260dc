"""The specs of recorded fleets have the same revision today, so an upgrade replaces none of their pods.

`tests/cluster/test_operator_recorded_upgrades.py` plays the same recordings on a real API server.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.builders import make_fleet

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.core.manifests.revisions import revision_of
from rlfleet_resources import names
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import WeightsStatus

STATES = sorted((Path(__file__).parents[1] / "cluster/recorded").glob("state_*.yaml"))


def objects(file: Path, kind: str) -> list[dict[str, Any]]:
    return [o for o in yaml.safe_load_all(file.read_text()) if o["kind"] == kind]


def test_there_is_a_recording() -> None:
    assert STATES


@pytest.mark.parametrize("file", STATES, ids=lambda file: file.stem)
def test_the_revision_of_a_recorded_spec_is_that_of_its_pods(file: Path) -> None:
    (fleet,) = objects(file, "InferenceFleet")
    pods = objects(file, "Pod")

    spec = FleetSpec.model_validate(fleet["spec"])

    assert pods
    assert {p["metadata"]["labels"][names.LABEL_REVISION] for p in pods} == {
        revision_of(replace(make_fleet(), spec=spec))
    }


@pytest.mark.parametrize("file", STATES, ids=lambda file: file.stem)
def test_a_recorded_status_is_read(file: Path) -> None:
    (fleet,) = objects(file, "InferenceFleet")
    (weights,) = objects(file, "WeightVersion")

    assert FleetStatus.model_validate(fleet["status"]).applied_version == "2"
    assert WeightsStatus.model_validate(weights["status"]).applied_version == "2"
    assert WeightsSpec.model_validate(weights["spec"]).version == "2"
