"""Contradictions between the state of a worker and its engine, which no call may leave behind."""

from __future__ import annotations

from fleet_worker.lifecycle.states import LifecycleState
from fleet_worker.protocol import Phase

_OPEN = frozenset({Phase.SERVING, Phase.PAUSED})
_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})


def contradiction(
    state: LifecycleState, *, paused: bool, unfinished: int, under_way: bool = False
) -> str | None:
    """Return a sentence if a worker contradicts its engine, else None.

    Args:
        state: State of the worker.
        paused: Whether the engine is paused.
        unfinished: Number of requests in the engine, running or held.
        under_way: Whether a call is at work, or has closed the latch and waits for its turn. Such a
            call still repairs some contradictions, which do not count then.
    """
    phase, closed = state.phase, not state.admitted
    always = {
        "the engine generates while its weights change": phase is Phase.LOADING and not paused,
        f"the worker is {phase}, but its latch is open": phase in _CLOSED and not closed,
        "the worker is idle, but its latch is open": state.idle and not closed,
    }
    settled = {
        "the worker is pausing, but no pause call is at work": phase is Phase.PAUSING,
        f"the worker is {phase}, but its latch is closed": phase in _OPEN and closed,
        "the worker serves, but its engine is paused": phase is Phase.SERVING and paused,
        "the worker is paused, but its engine generates": phase is Phase.PAUSED and not paused,
        "the worker is idle, but its engine generates": state.idle and not paused,
        "the worker is idle, but its engine has requests": state.idle and unfinished > 0,
    }
    found = always if under_way else always | settled
    return next((message for message, is_true in found.items() if is_true), None)
