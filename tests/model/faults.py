"""How likely what goes wrong is, each time that it could."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Faults:
    """Chances, each per opportunity.

    Fields:
        operator_dies_after: number of actions from now on.
    """

    answer_lost: float = 0
    call_lost: float = 0
    answer_late: float = 0
    operator_dies: float = 0
    operator_freezes: float = 0
    stale_view: float = 0
    status_unwritten: float = 0
    api_refuses: float = 0
    operator_dies_after: int | None = None
