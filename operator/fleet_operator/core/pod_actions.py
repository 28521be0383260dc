"""The changes of pods that the planners may ask for. Their reasons go into log lines and events unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Create the worker of one ordinal."""

    pod_name: str
    manifest: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPod:
    """Base of the actions on one pod. They have no effect on another pod with the same name."""

    pod_uid: str
    pod_name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod(OnPod):
    """Delete the pod. Its preStop hook lets running requests end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginDrain(OnPod):
    """Take a pod out of the Service and mark it, so that it is deleted once its requests have ended."""

    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDrain(OnPod):
    """Remove the drain mark: the pod stays, and its worker joins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPod(OnPod):
    """Become the owner of a pod that has the fleet's labels and no owner."""

    owner: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine(OnPod):
    """Take a pod out of the Service for good, and record the reason on the pod."""


PodAction = CreatePod | DeletePod | BeginDrain | EndDrain | AdoptPod | Quarantine
