"""Rolling: groups of `maxUnavailable` workers swap, one group after the other.

For fleets that must keep serving. Two versions generate during the whole rollout.
"""

from __future__ import annotations

from fleet_operator.core.percentages import at_most
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.strategies.gradual import step_towards


def step(view: RolloutView) -> Step:
    """Decide the next step of a rolling rollout."""
    return step_towards(view, at_once=at_most(view.settings.max_unavailable, view.replicas))
