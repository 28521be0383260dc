"""Writes of this process to pods that the watch has not delivered yet.

Without them, a late watch would let a decision repeat with another pod: a second pod would be drained
or deleted. A write is forgotten once the watch has delivered it, or what another writer has made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_operator.core.pod_actions import BeginDrain, DeletePod, EndDrain, PodAction, Quarantine
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.resource_versions import is_later


@dataclass(slots=True)
class _Written:
    """Changed fields of one pod, and its resourceVersion after the last write; empty if it is unknown."""

    fields: dict[str, Any] = field(default_factory=dict)
    version: str = ""


class UnobservedWrites:
    """Changes of one fleet's pods by uid, as fields of their views."""

    def __init__(self) -> None:
        self._changes: dict[str, _Written] = {}

    def note(self, action: PodAction, version: str = "") -> None:
        """Note a successful write. `version`: the resourceVersion that it has made."""
        match action:
            case DeletePod():
                change: dict[str, Any] = {"deleting": True}
            case BeginDrain():
                change = {"drains_since": action.since}
            case EndDrain():
                change = {"drains_since": None}
            case Quarantine():
                change = {"quarantine": action.reason}
            case _:
                return
        written = self._changes.setdefault(action.pod_uid, _Written())
        written.fields.update(change)
        written.version = version

    def laid_over(self, pods: Sequence[PodView]) -> Sequence[PodView]:
        """The pods with the unobserved writes applied."""
        changes = self._changes
        if not changes:
            return pods
        there = {p.uid: p for p in pods}
        for uid in list(changes):
            pod = there.get(uid)
            written = changes[uid]
            missing = {f: v for f, v in written.fields.items() if pod and getattr(pod, f) != v}
            if missing and pod is not None and not _has_seen(pod, written.version):
                written.fields = missing
            else:
                del changes[uid]
        return [replace(p, **changes[p.uid].fields) if p.uid in changes else p for p in pods]


def _has_seen(pod: PodView, version: str) -> bool:
    """Whether a pod is as it was after a write, or later."""
    known = version.isdecimal() and pod.version.isdecimal()
    return known and not is_later(version, pod.version)
