"""Random histories under every fault at once: no promise breaks, and every one comes to a good end.

python -m tests.model.soak --replay 471     tells the history of one seed
"""

from __future__ import annotations

import pytest
from tests.model.mischief import history

BLOCKS = 24
STEPS_PER_BLOCK = 2_100
"""24 blocks make more than 50,000."""


@pytest.mark.no_cover
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_breaks_and_every_history_comes_to_a_good_end(block, record_property):
    steps, seed = 0, 1000 * block
    while steps < STEPS_PER_BLOCK:
        steps += history(seed).steps
        seed += 1

    record_property("simulated steps of random histories", steps)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_tells_the_same_history_every_time(seed):
    one, two = history(seed, reconciles=40), history(seed, reconciles=40)

    assert one.log == two.log
    assert one.steps == two.steps
