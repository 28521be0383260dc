"""Pods that carry a fleet's labels and belong to something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.core.observed import PodView
from fleet_operator.errors import NameTaken
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.troubles import Troubles

_POD = "Pod "


def is_foreign(pod: PodView, fleet_uid: str) -> bool:
    """Whether another object controls the pod."""
    return bool(pod.owner) and pod.owner != fleet_uid


def judged(pod: PodView, fleet_uid: str) -> PodView:
    """The pod as planners see it. One that belongs to another object, say to an earlier fleet of this
    name, is on its way out: it holds its name, and nothing else is done with it.
    """
    return replace(pod, deleting=True) if is_foreign(pod, fleet_uid) else pod


def note_foreign(troubles: Troubles, key: FleetKey, pods: Sequence[PodView]) -> None:
    """Note foreign pods as troubles of a fleet, until they are gone. Those of an earlier fleet of this
    name go with it soon.
    """
    parts = {f"{_POD}{p.name}" for p in pods if not p.deleting}
    for part in parts:
        message = (
            f"{part} carries this fleet's labels and belongs to another object: it is left as it "
            "is. Delete it, or make the fleet under another name"
        )
        troubles.note(key, part, NameTaken(message, may_pass=True))
    troubles.forget_all_but(key, _POD, parts)
