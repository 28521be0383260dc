"""Named stories of workers that answer, and do not follow calls; `stories.STORIES` names them all."""

from __future__ import annotations

from tests.model.chronicle import Chronicle, Story
from tests.model.fake_worker import ALL

from rlfleet_resources.reasons import ConditionReason


def a_worker_that_ignores_pauses() -> Chronicle:
    """A worker answers pauses with success and generates on: it is called every 5 s, and reported"""
    its = Chronicle(rollout={"timeouts": {"pauseSeconds": 600}})
    odd = its.fleet.pod(1)
    its.fleet.ignore(odd, "pause")
    its.fleet.publish("2")
    its.until(lambda: _reason(its) is ConditionReason.CALL_WITHOUT_EFFECT, seconds=0.5)
    its.go(60, seconds=0.5)
    its.fleet.obey(odd)
    return its.end()


def a_worker_that_refuses_all_calls() -> Chronicle:
    """A worker refuses every call that is to take it away: it is called every 5 s, and reported"""
    its = Chronicle(replicas=3)
    odd = its.fleet.pod(2)
    its.fleet.reject(odd, ALL)
    its.fleet.scale(2)
    its.until(lambda: _reason(its) is ConditionReason.CALL_WITHOUT_EFFECT, seconds=0.5)
    its.go(60, seconds=0.5)
    its.fleet.obey(odd)
    return its.end()


def _reason(its: Chronicle) -> ConditionReason | None:
    return its.fleet.stalled.reason if its.fleet.stalled is not None else None


STORIES: list[Story] = [
    a_worker_that_ignores_pauses,
    a_worker_that_refuses_all_calls,
]
