"""InFlight: every worker swaps as soon as it has staged.

For asynchronous training: the smallest pause, and for a moment two versions generate.
"""

from __future__ import annotations

from fleet_operator.core.step import RolloutView, Step
from fleet_operator.core.strategies.gradual import step_towards


def step(view: RolloutView) -> Step:
    """Decide the next step of an in-flight rollout."""
    return step_towards(view, at_once=None)
