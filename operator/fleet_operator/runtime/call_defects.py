"""Defects of the operator that sending requests to workers has met, by fleet and kind of request."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fleet_operator.runtime.pod_informer import FleetKey

UNPLANNED_SECONDS = 10.0
"""A defect ends when its kind of request was not planned for this time. The decision that follows a failed
request may wait for a read of the worker, and plans it again afterwards."""


class CallDefects:
    """A defect ends with the next success of its kind, when no request of its kind is planned any more,
    and with the fleet.

    `report`: notes that a part of a fleet's work has failed, or works again (None).
    """

    def __init__(self, report: Callable[[FleetKey, str, Exception | None], None]) -> None:
        self._report = report
        self._planned_at: dict[FleetKey, dict[str, float]] = {}

    def begin(self, key: FleetKey, kind: str, error: Exception, now: float) -> None:
        """Note that a request of this kind raised."""
        self._planned_at.setdefault(key, {})[kind] = now
        self._report(key, _part(kind), error)

    def end(self, key: FleetKey, kind: str) -> None:
        """Note that a request of this kind was answered."""
        if not self._planned_at:
            return  # as nearly always: there are thousands of answers
        known = self._planned_at.get(key, {})
        if known.pop(kind, None) is not None:
            self._report(key, _part(kind), None)
        if not known:
            self._planned_at.pop(key, None)

    def update(self, key: FleetKey, planned: Callable[[], Collection[str]], now: float) -> None:
        """Note the kinds of requests that a decision plans."""
        known = self._planned_at.get(key)
        if known is None:
            return
        kinds = planned()
        known.update({kind: now for kind in known if kind in kinds})
        for kind in [k for k, at in known.items() if now - at >= UNPLANNED_SECONDS]:
            self.end(key, kind)

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._planned_at.pop(key, None)


def _part(kind: str) -> str:
    return f"requests to workers ({kind})"
