"""How long this leader has seen each pod wait, on a monotonic clock.

Memory only. A new leader believes what the pods say of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet_operator.core.observed import PodView
from fleet_operator.core.pod_waits import Awaited
from fleet_operator.runtime.informer import FleetKey


@dataclass(frozen=True, slots=True)
class _Seen:
    awaited: Awaited | None
    began_at: float
    saw_it_begin: bool


class PodWatch:
    """Waits by fleet and uid of the pod. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[FleetKey, dict[str, _Seen]] = {}

    def look(self, key: FleetKey, pods: Sequence[PodView], now: float) -> list[PodView]:
        """The pods of a fleet, with what was seen of their waits up to now."""
        before = self._seen.get(key)
        after = {p.uid: _seen(before, p, now) for p in pods}
        self._seen[key] = after
        return [_with_watched(p, after[p.uid], now) for p in pods]

    def forget(self, key: FleetKey) -> None:
        """Drop what is known of a fleet that is gone, or that another release drives."""
        self._seen.pop(key, None)


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
