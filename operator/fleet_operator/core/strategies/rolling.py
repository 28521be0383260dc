"""Rolling: groups of `maxUnavailable` swap, one after the other.

For serving-like use: the others go on serving, and for the whole rollout two versions generate.
"""

from __future__ import annotations

from fleet_operator.core.amounts import at_most
from fleet_operator.core.step import RolloutView, Step
from fleet_operator.core.strategies.gradual import step_towards


def step(view: RolloutView) -> Step:
    """Decide the next step of a rolling rollout."""
    return step_towards(view, at_once=at_most(view.settings.max_unavailable, view.replicas))
