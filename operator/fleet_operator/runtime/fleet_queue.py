"""The queue of fleets, with the order in which they wait."""

from __future__ import annotations

from collections.abc import Callable

from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.workqueue import WorkQueue
from fleet_operator.time_shares import TimeShares

FLEETS_AT_ONCE = 32
"""Reconciles at once. One namespace gets three quarters of them at most."""
PAUSED_AT_ONCE = 8
"""Additional reconciles of fleets whose workers are paused."""


class FleetQueue(WorkQueue[FleetKey]):
    """Fleets to reconcile. Fleets with paused workers come before all others, and namespaces take turns.

    Fields:
        shares: the time that each namespace has used.
    """

    def __init__(
        self,
        begun: Callable[[FleetKey, float], None],
        deadline: Callable[[FleetKey, float], float | None],
    ) -> None:
        """Args:
        begun: as of `WorkQueue`.
        deadline: When the first pause of a fleet's workers ends; None if none lasts.
        """
        self.shares = TimeShares()
        super().__init__(
            workers=FLEETS_AT_ONCE,
            urgent_workers=PAUSED_AT_ONCE,
            tenant=lambda key: key[0],
            deadline=deadline,
            shares=self.shares,
            begun=begun,
        )
