"""Named stories of fleets that are scaled; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story
from tests.model.faults import Faults

from fleet_worker.protocol import PauseMode, PauseRequest


def a_scale_down_with_a_worker_that_hangs() -> Chronicle:
    """Scaled down next to a worker that hangs, while its new template is refused: the one that serves stays"""
    its = Chronicle(replicas=2, update={"maxUnavailable": 0, "maxSurge": 1})
    its.fleet.refuse_templates()
    its.fleet.change_fleet("changes the template", engine={"args": ["--seed=1"]})
    its.fleet.hang(its.fleet.pod(0))
    its.go(4, seconds=5.0)
    its.fleet.scale(1)
    its.go(2)
    return its.end()


def a_late_pause_before_the_fence_of_a_drain() -> Chronicle:
    """A worker that must go is paused by a call of an earlier leader, unseen: its request is not cut"""
    its = Chronicle(replicas=2)
    leaving = its.fleet.pod(1)
    its.fleet.scale(1)
    its.until(lambda: leaving.drains_since is not None)
    its.fleet.faults = Faults(stale_view=1.0)
    epoch = leaving.worker.epoch  # of an earlier leader
    assert epoch is not None
    pause = PauseRequest(
        mode=PauseMode.KEEP, drain_timeout_seconds=0, lease_seconds=30, epoch=epoch
    )
    leaving.worker.take(pause, its.fleet.now)
    its.go(2, seconds=0.1)
    its.fleet.faults = Faults()
    return its.end()


STORIES: list[Story] = [
    a_scale_down_with_a_worker_that_hangs,
    a_late_pause_before_the_fence_of_a_drain,
]
