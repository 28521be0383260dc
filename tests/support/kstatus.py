"""kstatus' verdict of a custom resource, on which `helm --wait`, Flux and `kpt live` rely.

Source: `kubernetes-sigs/cli-utils`, pkg/kstatus/status: `checkGenericProperties`, `checkGeneration`
and `checkReadyCondition`, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Verdict = Literal["Terminating", "InProgress", "Failed", "Current"]


def kstatus(found: Mapping[str, Any]) -> Verdict:
    """The verdict on an object as the API server gives it."""
    metadata, status = found["metadata"], found.get("status", {})
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    generation = metadata.get("generation")
    if status.get("observedGeneration", generation) != generation:
        return "InProgress"
    conditions = status.get("conditions", ())
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready" and condition["status"] != "True":
            return "InProgress"
    return "Current"
