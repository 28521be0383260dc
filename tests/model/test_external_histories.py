"""Promise 16, about fleets that a trainer drives, holds; and mistakes that break it are caught."""

from __future__ import annotations

import pytest
from tests.model.blocks import first_ones_short
from tests.model.external_fleets import external_history
from tests.model.hunt import breaks
from tests.model.mutants import Mutant

BLOCKS, HISTORIES_PER_BLOCK = 6, 30

MUTANTS = [
    Mutant(
        16,
        "the operator calls workers while the trainer holds some",
        "core/strategies/external.py",
        "if at_work:",
        "if False:",
    ),
    Mutant(
        16,
        "workers that join wait for one that became silent in an update",
        "core/strategies/external.py",
        "m.silent_seconds < PROBE_SECONDS",
        "True",
        seed=38,
    ),
    Mutant(
        16,
        "an update ends with one lost answer",
        "core/strategies/external.py",
        "m.silent_seconds < PROBE_SECONDS",
        "m.standing is not Standing.UNKNOWN",
        seed=9,
    ),
    Mutant(
        16,
        "a worker that has received the weights is not admitted",
        "core/strategies/external.py",
        "return with_joiners(view, taken, _open_at(common))",
        "return taken if common.is_transferred else with_joiners(view, taken, _open_at(common))",
    ),
    Mutant(
        9,
        "other files of a directory count as those of its version",
        "core/external_pins.py",
        "others = workers.where(differs)",
        "others = workers.where(lambda _: False)",
    ),
    Mutant(
        9,
        "a minority with other files of a directory keeps serving",
        "core/rollout_plan.py",
        "stay = common is None or is_reused(common, pinned)",
        "stay = True",
    ),
    Mutant(
        9,
        "weights of one name from two process groups are equal",
        "core/identity.py",
        "and one.run_id == other.run_id",
        "and True",
        seed=7,
    ),
    Mutant(
        16,
        "workers that have started on an old ConfigMap are admitted at its version",
        "core/strategies/external.py",
        "f.busy or not f.has_effect",
        "f.busy",
    ),
    Mutant(
        16,
        "a worker that missed the update keeps serving",
        "core/strategies/external.py",
        "lambda f: not f.has_loaded(common) and f.standing is Standing.OPEN)",
        "lambda f: False)",
    ),
    Mutant(
        16,
        "any version counts as that of the majority",
        "core/strategies/external.py",
        "if weights is not None and 2 * count > len(admitted):",
        "if weights is not None:",
    ),
]


@pytest.mark.parametrize("block", first_ones_short(range(BLOCKS), 1))
def test_every_history_of_an_external_fleet_ends_with_the_trainers_version(block):
    for seed in range(1000 * block, 1000 * block + HISTORIES_PER_BLOCK):
        external_history(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.mistake}")
def test_a_mistake_is_caught_as_the_promise_that_it_breaks(mutant: Mutant) -> None:
    assert breaks(mutant, external_history, mutant.promise)
