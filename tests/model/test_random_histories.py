"""Random histories with every kind of fault keep all promises and come to a good end.

`python -m tests.model.soak --replay 471` prints the history of one seed.
"""

from __future__ import annotations

import pytest
from tests.model.blocks import first_ones_short
from tests.model.random_history import history
from tests.model.simulator import Simulation

from fleet_worker.protocol import Epoch, FenceRequest, Phase

SHORT_BLOCKS, BLOCKS = 4, 24
STEPS_PER_BLOCK = 2_100
"""4 blocks make more than 8,000 steps, 24 blocks more than 50,000."""


@pytest.mark.parametrize("block", first_ones_short(range(BLOCKS), SHORT_BLOCKS))
def test_every_history_keeps_the_promises_and_converges(block, record_property):
    steps, seed = 0, 1000 * block
    while steps < STEPS_PER_BLOCK:
        steps += history(seed).steps
        seed += 1

    record_property("simulated steps of random histories", steps)


def test_a_seed_gives_the_same_history_every_time():
    one, two = history(1), history(1)

    assert one.log == two.log
    assert one.steps == two.steps


def test_repairs_make_work_faster_and_cut_no_request_of_a_drain():
    fleet = Simulation(seed=1, replicas=1)
    fleet.settle()
    (worker,) = fleet.workers.values()
    worker.requests.generate(0.5)
    epoch = Epoch(term=worker.epoch.term + 1, sequence=0)
    worker.take(FenceRequest(reason="a test", epoch=epoch, drain_timeout_seconds=60), fleet.now)
    assert worker.phase is Phase.PAUSING
    worker.end_slow_work(0)
    worker.tick(fleet.now + 60)

    assert worker.phase is Phase.JOINING
    assert worker.requests.ended == []
