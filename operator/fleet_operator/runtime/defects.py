"""Defects of the operator that work on one fleet has met."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from fleet_operator.core.problems import Defect
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.problems import FleetProblems

logger = logging.getLogger(__name__)

UNPLANNED_SECONDS = 10.0
"""A defect of a request ends when its kind of request was not planned for this time. The decision that follows a
failed request may wait for a read of the worker, and plans it again afterwards."""


class DefectLog:
    """Logs each defect of a reconcile with its traceback once: one may repeat every second."""

    def __init__(self, key: FleetKey, metrics: Metrics) -> None:
        self._key = key
        self._metrics = metrics
        self._reported: set[tuple[str, type[Exception]]] = set()

    def note_all(self, defects: Sequence[Defect]) -> None:
        """Log the defects of a decision, and forget those that it does not have any more."""
        for defect in defects:
            self.note(defect)
        self._reported &= {(d.part, type(d.error)) for d in defects}

    def note(self, defect: Defect) -> None:
        """Log a defect with its traceback if it is new."""
        self._metrics.failures.labels("defect").inc()
        known = (defect.part, type(defect.error))
        logger.log(
            logging.DEBUG if known in self._reported else logging.ERROR,
            "fleet %s/%s: defect in %s",
            *self._key,
            defect.part,
            exc_info=defect.error,
            extra=fleet_fields("defect", self._key, part=defect.part),
        )
        self._reported.add(known)


class CallDefects:
    """Defects that sending requests to workers has met, by kind of request. One ends with the next success of its
    kind, and when no request of its kind is planned any more. `problems`: where they are noted.
    """

    def __init__(self, problems: FleetProblems) -> None:
        self._problems = problems
        self._planned_at: dict[str, float] = {}

    def begin(self, kind: str, error: Exception, now: float) -> None:
        """Note that a request of this kind raised."""
        self._planned_at[kind] = now
        self._problems.note(_part(kind), error)

    def end(self, kind: str) -> None:
        """Note that a request of this kind was answered."""
        if self._planned_at.pop(kind, None) is not None:
            self._problems.note(_part(kind), None)

    def update(self, planned: Callable[[], Collection[str]], now: float) -> None:
        """Note the kinds of requests that a decision plans."""
        if not self._planned_at:
            return
        kinds = planned()
        self._planned_at |= {kind: now for kind in self._planned_at if kind in kinds}
        for kind in [k for k, at in self._planned_at.items() if now - at >= UNPLANNED_SECONDS]:
            self.end(kind)


def _part(kind: str) -> str:
    return f"requests to workers ({kind})"
