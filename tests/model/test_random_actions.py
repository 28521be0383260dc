"""Random actions are possible ones: a fleet can keep every promise under them."""

from __future__ import annotations

import pytest
from tests.model.random_actions import RandomActions
from tests.model.random_history import new_fleet
from tests.model.swarm import swarm_of

CANARY = {"strategy": "Canary"}


@pytest.mark.parametrize("seed", range(8))
def test_weights_are_odd_from_the_start_or_never(seed):
    """A version that was judged and served does not become odd when it is requested again."""
    swarm = swarm_of(seed)
    actions = RandomActions(new_fleet(seed, swarm, rollout=CANARY), swarm)
    fleet, asked = actions.fleet, set[str]()
    for turn in range(60):
        found, before = set(asked), set(fleet.odd_versions)
        actions.waits_until = 0
        choices = [actions.publish, actions.begin_run, actions.delete_weights]
        actions.chance.choice(choices)()
        actions.create_weights()
        asked.add(fleet.version)

        assert not (fleet.odd_versions - before) & found, f"turn {turn}"
