"""Named stories of fleets that are scaled; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story


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


STORIES: list[Story] = [
    a_scale_down_with_a_worker_that_hangs,
]
