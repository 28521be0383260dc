"""The template that a fleet's pods were made from, and how today's would differ.

A template is recorded under the revision of the fleet's own spec. As long as that stays, new pods are
made from the record: an upgrade of the operator, or another default image, changes no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_operator.core.quantities import comparable_resources

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTemplate:
    """What pods of one revision are made from.

    Fields:
        pod: metadata and spec, as `pods.template_of` made them.
        release: of the operator that made it.
        held_back: pods of earlier templates that waited for a scheduling gate when it was recorded.
    """

    revision: str
    pod: Pod
    release: str
    held_back: int = 0


def update_available(recorded: RecordedTemplate, today: Pod, release: str) -> str:
    """How pods that were made today would differ, in short words; empty if they would not."""
    if recorded.pod == today:
        return ""
    before, after = _images(recorded.pod), _images(today)
    changed = [
        f"image {before[name]} -> {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    if _without_images(recorded.pod) != _without_images(today):
        changed.append(f"template of operator {recorded.release} -> {release}")
    return ", ".join(changed)


def _images(pod: Pod) -> dict[str, str]:
    return {c["name"]: c.get("image", "") for c in pod["spec"]["containers"]}


def _without_images(pod: Pod) -> dict[str, Any]:
    containers = [
        {k: v for k, v in c.items() if k != "image"}
        | {"resources": comparable_resources(c.get("resources", {}))}
        for c in pod["spec"]["containers"]
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}
