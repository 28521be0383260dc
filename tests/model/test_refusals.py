"""Promise 10: every refusal, foreign object, unreadable object and defect is reported, and pauses are
renewed meanwhile. Mistakes that break it are caught."""

from __future__ import annotations

import pytest
from tests.model.blocks import first_ones_short
from tests.model.hunt import breaks
from tests.model.mutants import Mutant
from tests.model.refusals import RefusingSimulation, refused_history

from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionReason, ConditionType

BLOCKS = 6
HISTORIES_PER_BLOCK = 8

MUTANTS = [
    Mutant(
        10,
        "a problem that is noted is forgotten",
        "runtime/problems.py",
        "self._failing[part] = _Failing(error, since)",
        "self._failing.pop(part, None)",
    ),
    Mutant(
        10,
        "a pod's name that is taken is not looked at",
        "runtime/kube_pods.py",
        "await self._check_name(pods, action.manifest)",
        "pass",
        seed=6,
    ),
    Mutant(
        10,
        "problems become no condition",
        "core/problems.py",
        "    if not problems:\n        return status\n",
        "    if now:\n        return status\n",
    ),
    Mutant(
        10,
        "a list or a watch that is refused is not a problem of the fleets that it serves",
        "runtime/problems.py",
        "if read.namespace in {None, key[0]}",
        "if read.namespace not in {None, key[0]}",
    ),
    Mutant(
        10,
        "a refused status of one object is not reported on the other",
        "runtime/problems.py",
        "concerns_weights=part.startswith(STATUS),",
        "concerns_weights=False,",
        seed=12,
    ),
    Mutant(
        10,
        "a problem that passes takes the reason of a halt with it",
        "core/problems.py",
        "tuple(map(alone, before.conditions))",
        "_without_stalled(before.conditions)",
    ),
    Mutant(
        10,
        "a problem that has passed stays in the message of a halt",
        "core/weights_conditions.py",
        "before.reason, alone(before).message",
        "before.reason, before.message",
    ),
]


@pytest.mark.parametrize("block", first_ones_short(range(BLOCKS), 1))
def test_each_refusal_is_reported_until_it_ends(block):
    for seed in range(1000 * block, 1000 * block + HISTORIES_PER_BLOCK):
        refused_history(seed)


def test_a_template_that_cannot_be_recorded_is_reported_until_it_can_be():
    fleet = RefusingSimulation(seed=1, replicas=2)
    fleet.settle()
    fleet.refuse_templates()
    fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
    fleet.look()

    assert stalled_of(fleet) is ConditionReason.WRITE_REFUSED
    fleet.refuse_templates(refuse=False)
    fleet.settle()
    assert stalled_of(fleet) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.mistake}")
def test_a_mistake_is_caught_as_a_refused_call(mutant: Mutant) -> None:
    assert breaks(mutant, refused_history, 10)


def test_the_operator_as_it_is_keeps_the_promise():
    assert not breaks(None, refused_history, 10, histories=3)


def stalled_of(fleet: RefusingSimulation) -> ConditionReason | None:
    """Why the fleet is stalled, as stored."""
    stalled = condition_of(fleet.fleet_stored.conditions, ConditionType.STALLED)
    return stalled.reason if stalled is not None else None
