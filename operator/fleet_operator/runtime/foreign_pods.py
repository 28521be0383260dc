"""Pods that carry a fleet's labels and belong to another object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.core.worker_view import PodView
from fleet_operator.errors import NameTaken
from fleet_operator.runtime.problems import FleetProblems

_POD = "Pod "


def is_foreign(pod: PodView, fleet_uid: str) -> bool:
    """Whether another object controls the pod."""
    return bool(pod.owner) and pod.owner != fleet_uid


def as_deleting(pod: PodView, fleet_uid: str) -> PodView:
    """The pod as planners see it. A pod of another object, for example of an earlier fleet of this name,
    counts as being deleted: its name is taken, and the operator leaves it alone.
    """
    return replace(pod, deleting=True) if is_foreign(pod, fleet_uid) else pod


def note_foreign(problems: FleetProblems, pods: Sequence[PodView]) -> None:
    """Note foreign pods as problems of a fleet until they are gone. Those of an earlier fleet of this name
    disappear soon.
    """
    parts = {f"{_POD}{p.name}" for p in pods if not p.deleting}
    for part in parts:
        message = (
            f"{part} carries this fleet's labels and belongs to another object, so the operator "
            "leaves it as it is. Delete it, or create the fleet under another name"
        )
        problems.note(part, NameTaken(message, may_pass=True))
    problems.forget_all_but(_POD, parts)
