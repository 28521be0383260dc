"""Builds the InferencePool of a fleet, a backend for gateways of the Gateway API.

The pool selects the workers that the fleet's Service selects. The endpoint picker, which belongs to
the user, chooses among those that are ready. Readiness follows the latch.

Source: Gateway API Inference Extension 1.0.0, `inference.networking.k8s.io/v1` InferencePool.
"""

from __future__ import annotations

from typing import Any

from fleet_operator.core.manifests.pods import owner_reference
from fleet_operator.core.observed import FleetObserved
from rlfleet_resources import names

GROUP = "inference.networking.k8s.io"
VERSION = "v1"
PLURAL = "inferencepools"


def inference_pool(observed: FleetObserved) -> dict[str, Any] | None:
    """Builds the pool; None without `spec.serving.inferencePool`."""
    serving = observed.spec.serving
    if serving.inference_pool is None:
        return None
    picker = serving.inference_pool.endpoint_picker_ref
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "InferencePool",
        "metadata": {
            "name": observed.name,
            "namespace": observed.namespace,
            "labels": names.fleet_labels(observed.name),
            "ownerReferences": [owner_reference(observed)],
        },
        "spec": {
            "selector": {"matchLabels": names.endpoint_selector(observed.name)},
            "targetPorts": [{"number": serving.port}],
            "endpointPickerRef": {
                "name": picker.name,
                "port": {"number": picker.port},
                "failureMode": picker.failure_mode,
            },
        },
    }
