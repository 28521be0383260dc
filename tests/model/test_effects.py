"""Promise 13: what a load has changed and ignored is reported; and mistakes that break it are caught."""

from __future__ import annotations

import pytest
from tests.model.blocks import first_ones_short
from tests.model.effects import effect_history
from tests.model.hunt import breaks
from tests.model.mutants import Mutant

BLOCKS = 4
HISTORIES_PER_BLOCK = 6

MUTANTS = [
    Mutant(
        13,
        "what cannot be compared counts as changed",
        "core/effect.py",
        "for _, s, e in about if e.changed_share is not None]",
        "for _, s, e in about]",
    ),
    Mutant(
        13,
        "one worker that saw no change is enough",
        "core/effect.py",
        "unchanged=bool(comparable) and all(",
        "unchanged=bool(comparable) and any(",
        seed=23,
    ),
    Mutant(
        13,
        "what changed nothing is not reported",
        "core/effect.py",
        "if effect is None or not effect.unchanged:",
        "if effect is None or effect.unchanged:",
    ),
    Mutant(
        13,
        "the remarks on the version before stay",
        "core/remarks.py",
        "    if not observed.workers.any(lambda f: f.has_loaded(desired)):",
        "    if condition_of(before, ConditionType.REMARKS):",
    ),
    Mutant(
        13,
        "remarks are not reported",
        "core/weights_conditions.py",
        "(remarks, True, ConditionReason.IGNORED_OR_CAST, remarks)",
        "(not remarks, True, ConditionReason.IGNORED_OR_CAST, remarks)",
    ),
]


@pytest.mark.parametrize("block", first_ones_short(range(BLOCKS), 1))
def test_versions_that_changed_nothing_and_remarks_are_reported_and_no_others(block):
    for seed in range(1000 * block, 1000 * block + HISTORIES_PER_BLOCK):
        effect_history(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.promise}: {m.mistake}")
def test_a_mistake_is_caught_as_promise_thirteen(mutant: Mutant) -> None:
    assert breaks(mutant, effect_history, 13)
