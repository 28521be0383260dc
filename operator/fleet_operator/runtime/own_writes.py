"""What this process has written to pods and the watch has not brought yet.

Without it a late watch would let the same decision be made twice for two pods: one more would be
drained, or deleted, for one that is on its way already. Nothing is kept once the watch has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet_operator.core.actions import BeginDrain, DeletePod, EndDrain, PodAction, Quarantine
from fleet_operator.core.observed import PodView
from fleet_operator.runtime.informer import FleetKey


class OwnWrites:
    """Changes of pods by fleet and uid, as fields of their views."""

    def __init__(self) -> None:
        self._changes: dict[FleetKey, dict[str, dict[str, Any]]] = {}

    def note(self, key: FleetKey, action: PodAction) -> None:
        """A write has succeeded."""
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
        self._changes.setdefault(key, {}).setdefault(action.uid, {}).update(change)

    def laid_over(self, key: FleetKey, pods: Sequence[PodView]) -> list[PodView]:
        """The pods as they are with our writes."""
        changes = self._changes.get(key)
        if not changes:
            return list(pods)
        there = {p.uid: p for p in pods}
        for uid in list(changes):
            pod = there.get(uid)
            missing = {f: v for f, v in changes[uid].items() if pod and getattr(pod, f) != v}
            if missing:
                changes[uid] = missing
            else:
                del changes[uid]
        return [replace(p, **changes.get(p.uid, {})) for p in pods]

    def forget(self, key: FleetKey) -> None:
        """The fleet is gone."""
        self._changes.pop(key, None)
