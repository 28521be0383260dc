"""Writes of this process to pods that the watch has not delivered yet.

Without them, a late watch would let a decision repeat with another pod: a second pod would be drained
or deleted. A write is forgotten once the watch has delivered it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet_operator.core.pod_actions import BeginDrain, DeletePod, EndDrain, PodAction, Quarantine
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.pod_informer import FleetKey


class UnobservedWrites:
    """Changes of pods by fleet and uid, as fields of their views."""

    def __init__(self) -> None:
        self._changes: dict[FleetKey, dict[str, dict[str, Any]]] = {}

    def note(self, key: FleetKey, action: PodAction) -> None:
        """Note a successful write."""
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
        self._changes.setdefault(key, {}).setdefault(action.pod_uid, {}).update(change)

    def laid_over(self, key: FleetKey, pods: Sequence[PodView]) -> Sequence[PodView]:
        """The pods with the unobserved writes applied."""
        changes = self._changes.get(key)
        if not changes:
            return pods
        there = {p.uid: p for p in pods}
        for uid in list(changes):
            pod = there.get(uid)
            missing = {f: v for f, v in changes[uid].items() if pod and getattr(pod, f) != v}
            if missing:
                changes[uid] = missing
            else:
                del changes[uid]
        return [replace(p, **changes[p.uid]) if p.uid in changes else p for p in pods]

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._changes.pop(key, None)
