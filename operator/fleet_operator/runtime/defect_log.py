"""Logs the defects of the operator that a reconcile meets, each with its traceback once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fleet_operator.core.problems import Defect
from fleet_operator.runtime.logs import fleet_fields
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_informer import FleetKey

logger = logging.getLogger(__name__)


class DefectLog:
    """Defects that are logged already, by fleet. One may repeat every second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._reported: dict[FleetKey, set[tuple[str, type[Exception]]]] = {}

    def note_all(self, key: FleetKey, defects: Sequence[Defect]) -> None:
        """Log the defects of a decision, and forget those that it does not have any more."""
        for defect in defects:
            self.note(key, defect)
        known = {(d.part, type(d.error)) for d in defects}
        self._reported[key] = {r for r in self._reported.get(key, set()) if r in known}

    def note(self, key: FleetKey, defect: Defect) -> None:
        """Log a defect with its traceback if it is new."""
        self._metrics.failures.labels("defect").inc()
        reported = self._reported.setdefault(key, set())
        known = (defect.part, type(defect.error))
        logger.log(
            logging.DEBUG if known in reported else logging.ERROR,
            "fleet %s/%s: defect in %s",
            *key,
            defect.part,
            exc_info=defect.error,
            extra=fleet_fields("defect", key, part=defect.part),
        )
        reported.add(known)

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._reported.pop(key, None)
