"""Measures how long this leader has seen each pod wait, on a monotonic clock.

Memory only: a new leader relies on the times in the pods' statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet_operator.core.pod_waits import Awaited
from fleet_operator.core.worker_view import PodView


@dataclass(frozen=True, slots=True)
class _Seen:
    awaited: Awaited | None
    began_at: float
    saw_it_begin: bool


class PodTimers:
    """Waits of one fleet's pods by uid. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] | None = None
        self._not_waiting: Sequence[PodView] | None = None
        """The pods of the last update, if none of them waited."""

    def update(self, pods: Sequence[PodView], now: float) -> Sequence[PodView]:
        """The pods of the fleet, with the measured times of their waits."""
        if self._not_waiting is pods:
            return pods
        before = self._seen
        self._seen = after = {p.uid: _seen(before, p, now) for p in pods}
        if all(p.wait is None for p in pods):
            self._not_waiting = pods
            return pods
        self._not_waiting = None
        return [_with_watched(p, after[p.uid], now) for p in pods]


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
