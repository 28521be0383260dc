"""InFlight: every worker swaps as soon as it has staged.

For asynchronous training. The pause is the shortest, and two versions generate for a moment.
"""

from __future__ import annotations

from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.strategies.gradual import step_towards


def step(view: RolloutView) -> Step:
    """Decide the next step of an in-flight rollout."""
    return step_towards(view, at_once=None)
