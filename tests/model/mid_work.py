"""Plays about faults and requests in the middle of work: most of their moments are those of a load or a swap.

The work takes a large part of its time, so that two such moments come in one piece of it. Then its own time
counts, whatever the phase, the strategy or the age of an answer say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

    from tests.model.plays import Act, Plays

_AT_WORK = (
    "a worker is loading",
    "a worker is loading",
    "a call to apply",
    "the odd one is loading",
)
_BETWEEN = ("versions differ", "some have loaded", "a worker is loading", "")


def rollout_in_mid_work(chance: Random) -> dict[str, Any]:
    """Returns the strategy and limits of such a play."""
    strategy = chance.choice(["Rolling", "Rolling", "InFlight", "Synchronized"])
    return {"strategy": strategy, "maxUnavailable": 1}


def acts_in_mid_work(plays: Plays) -> list[Act]:
    """Returns the scenes of one round."""
    its, brief = plays.its, plays.brief
    first = {
        its.publish_now: 1.0,
        plays.be_all_slow: 1.0,
        its.get_ahead: 0.3,
        plays.join_and_break: 0.1,
    }
    during = {
        plays.go_back_to_applied: 0.35,
        plays.change_to_barrier: 0.35,
        plays.change_leader_and_look_away: 0.3,
        plays.change_to_barrier_unseen: 0.3,
        plays.suspend_under_canaries: 0.2,
        its.publish_now: 0.1,
        brief.cut_off: 0.1,
        its.kill: 0.1,
    }
    return [([""], first), (_AT_WORK, during), (_BETWEEN, during), (_AT_WORK, during)]
