"""The recorded template of a fleet's pods, and its differences from the current one.

A template is recorded under the revision of the fleet's spec. While the revision stays, new pods use
the record. So an upgrade of the operator, or another default image, changes no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlfleet_resources.quantities import comparable_resources

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTemplate:
    """The template of the pods of one revision.

    Fields:
        pod: metadata and spec, from `pods.template_of`.
        release: the release of the operator that recorded it.
        held_back: pods of earlier templates that waited for a scheduling gate at that time.
    """

    revision: str
    pod: Pod
    release: str
    held_back: int = 0


def update_available(recorded: RecordedTemplate, today: Pod, release: str) -> str:
    """A short list of the differences between the recorded and the current template; may be empty."""
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
