"""Measures how long this leader has seen each pod wait, on a monotonic clock.

Memory only: a new leader relies on the times in the pods' statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet_operator.core.pod_waits import Awaited
from fleet_operator.core.worker_view import PodView
from fleet_operator.runtime.pod_informer import FleetKey


@dataclass(frozen=True, slots=True)
class _Seen:
    awaited: Awaited | None
    began_at: float
    saw_it_begin: bool


class PodTimers:
    """Waits by fleet and uid of the pod. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[FleetKey, dict[str, _Seen]] = {}
        self._not_waiting: dict[FleetKey, Sequence[PodView]] = {}
        """The pods of the last update, if none of them waited."""

    def update(self, key: FleetKey, pods: Sequence[PodView], now: float) -> Sequence[PodView]:
        """The pods of a fleet, with the measured times of their waits."""
        if self._not_waiting.get(key) is pods:
            return pods
        before = self._seen.get(key)
        after = {p.uid: _seen(before, p, now) for p in pods}
        self._seen[key] = after
        if all(p.wait is None for p in pods):
            self._not_waiting[key] = pods
            return pods
        self._not_waiting.pop(key, None)
        return [_with_watched(p, after[p.uid], now) for p in pods]

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone or that another release drives."""
        self._seen.pop(key, None)
        self._not_waiting.pop(key, None)


def _seen(before: dict[str, _Seen] | None, pod: PodView, now: float) -> _Seen:
    awaited = pod.wait.awaited if pod.wait is not None else None
    known = before.get(pod.uid) if before is not None else None
    if known is not None and known.awaited is awaited:
        return known
    return _Seen(awaited, now, saw_it_begin=before is not None)


def _with_watched(pod: PodView, seen: _Seen, now: float) -> PodView:
    if pod.wait is None:
        return pod
    wait = replace(pod.wait, watched_seconds=now - seen.began_at, saw_it_begin=seen.saw_it_begin)
    return replace(pod, wait=wait)
