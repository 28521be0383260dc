"""Random actions are possible ones: a fleet can keep every promise under them."""

from __future__ import annotations

import pytest
from tests.model.moments import Rule
from tests.model.random_actions import RandomActions
from tests.model.random_history import new_fleet
from tests.model.simulator import Simulation
from tests.model.swarm import swarm_of

CANARY = {"strategy": "Canary"}
THEMES = 7


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


@pytest.mark.parametrize("theme", range(THEMES))
def test_a_fleet_keeps_the_promises_under_all_actions_of_a_theme(theme):
    swarm = swarm_of(theme)
    actions = RandomActions(new_fleet(theme, swarm), swarm)
    for action in actions.all_themes()[theme]:
        action()
        actions.fleet.reconcile()
        actions.fleet.tick(1.0)
        actions.follow_rules()

    actions.brief.end_all()
    assert actions.brief.later == []


def test_a_rule_acts_once_when_its_moment_comes():
    fleet = Simulation(seed=1)
    fleet.settle()
    actions = RandomActions(fleet, swarm_of(1))
    acted: list[float] = []
    rule = Rule("all are paused", (lambda: acted.append(fleet.now),))
    actions.rules = [rule]
    for _ in range(3):
        actions.follow_rules()
    assert acted == []
    fleet.publish("2")
    while not fleet.converged():
        fleet.reconcile()
        fleet.tick(0.1)
        actions.follow_rules()

    assert len(acted) == 1
