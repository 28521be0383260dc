"""The states of a worker and the transitions between them.

```
                 admit                pause             (drained)
 starting ─► joining ────► serving ────────► pausing ────────────► paused ─┐ pause: renews the lease
               ▲ ▲ │          ▲ ▲ └────────────────── resume ─────────┘│ ▲ │
               │ │ │load      │ │    lease expired, weights untouched  │ │ │ loaded, refused
               │ │ ▼          │ └──────────────────────────────────────┘ │ ▼ load
               │ └ loading ◄──┼───────────────────────────────────── loading
               │      │       │   failed inside the engine
    recovered  │      ▼       │
               └─── broken    └ fence, or lease expired after a load: back to joining
 any ─► draining
```

Invariants, tested over the whole table:

* `admitted` (the latch is open) is true only in serving, pausing, paused, and in loading from paused.
* Only `recovered` and `drain` leave broken. No event leaves draining.
* Only `admit` opens the latch.
* The latch can close during other work. The phase follows at the end of that work: a closed worker
  without work is never serving or paused.
* A closed worker is idle after its engine was seen paused with no request left. Before that
  it refuses loads, pauses and admissions.

`tests/support/contradictions.py` checks a worker together with its engine. A test calls it after every
call of the agent, with a failure of each engine call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Phase, Reason


class Event(StrEnum):
    """Calls of a driver to a worker, and their results."""

    READY = "ready"
    """The engine is up."""
    PAUSE = "pause"
    PAUSED = "paused"
    PAUSE_FAILED = "pause failed"
    LOAD = "load"
    LOADED = "loaded"
    LOAD_REFUSED = "load refused"
    """Before the engine was touched."""
    LOAD_FAILED = "load failed"
    """After the engine was touched."""
    RECOVERED = "recovered"
    """The last good version is in the engine again."""
    RESUME = "resume"
    ADMIT = "admit"
    FENCE = "fence"
    """The latch is closed and the engine is idle."""
    LEASE_EXPIRED = "lease expired"
    NOT_IDLE = "not idle"
    """The latch is closed, and the engine may still hold requests or generate."""
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """The phase of a worker, with the position of its latch and the facts that calls depend on.

    Fields:
        admitted: Whether the latch is open: the worker accepts requests, and holds them while paused.
        loaded: Whether the weights have changed since the pause began.
        idle: Whether the latch is closed and the engine is idle, paused with no request left.
    """

    phase: Phase
    admitted: bool = False
    loaded: bool = False
    idle: bool = False


CALLS = (Event.PAUSE, Event.LOAD, Event.RESUME, Event.ADMIT, Event.FENCE, Event.DRAIN)
"""The calls of a driver. All other events are results."""

_NEXT: dict[tuple[Phase, Event], Phase] = {
    (Phase.STARTING, Event.READY): Phase.JOINING,
    (Phase.JOINING, Event.LOAD): Phase.LOADING,
    (Phase.JOINING, Event.ADMIT): Phase.SERVING,
    (Phase.JOINING, Event.FENCE): Phase.JOINING,
    (Phase.SERVING, Event.PAUSE): Phase.PAUSING,
    (Phase.SERVING, Event.RESUME): Phase.SERVING,
    (Phase.SERVING, Event.ADMIT): Phase.SERVING,
    (Phase.SERVING, Event.FENCE): Phase.JOINING,
    (Phase.PAUSING, Event.PAUSED): Phase.PAUSED,
    (Phase.PAUSING, Event.PAUSE_FAILED): Phase.SERVING,
    (Phase.PAUSING, Event.FENCE): Phase.JOINING,
    (Phase.PAUSED, Event.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, Event.LOAD): Phase.LOADING,
    (Phase.PAUSED, Event.RESUME): Phase.SERVING,
    (Phase.PAUSED, Event.FENCE): Phase.JOINING,
    (Phase.PAUSED, Event.LEASE_EXPIRED): Phase.SERVING,
    (Phase.LOADING, Event.LOADED): Phase.PAUSED,
    (Phase.LOADING, Event.LOAD_REFUSED): Phase.PAUSED,
    (Phase.LOADING, Event.LOAD_FAILED): Phase.BROKEN,
    (Phase.LOADING, Event.FENCE): Phase.LOADING,
    (Phase.JOINING, Event.NOT_IDLE): Phase.JOINING,
    (Phase.SERVING, Event.NOT_IDLE): Phase.JOINING,
    (Phase.PAUSING, Event.NOT_IDLE): Phase.JOINING,
    (Phase.PAUSED, Event.NOT_IDLE): Phase.JOINING,
    (Phase.LOADING, Event.NOT_IDLE): Phase.LOADING,
    (Phase.BROKEN, Event.NOT_IDLE): Phase.BROKEN,
    (Phase.BROKEN, Event.RECOVERED): Phase.JOINING,
    (Phase.BROKEN, Event.FENCE): Phase.BROKEN,
}

_NEEDS_IDLE_ENGINE = frozenset({Event.LOAD, Event.ADMIT})
_MAKES_IDLE = frozenset({Event.READY, Event.FENCE, Event.LEASE_EXPIRED, Event.RECOVERED})
_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})


def after(state: LifecycleState, event: Event) -> LifecycleState:
    """Return the state of the worker after an event.

    Errors:
        Refusal: `Broken` or `WrongPhase`, if the event does not fit the phase. Nothing changes.
    """
    if event is Event.DRAIN:
        return LifecycleState(Phase.DRAINING)
    phase = _NEXT.get((state.phase, event))
    if phase is None or (event in _NEEDS_IDLE_ENGINE and _is_busy(state)):
        raise _refusal(state, event)
    loaded = state.loaded or event is Event.LOADED
    if event is Event.LEASE_EXPIRED and state.loaded:
        phase = Phase.JOINING  # only the operator may admit the new weights
    if phase in (Phase.PAUSED, Phase.SERVING) and not state.admitted and event is not Event.ADMIT:
        phase = Phase.JOINING  # the latch was closed during the work
    if event in (Event.FENCE, Event.NOT_IDLE):
        state = replace(state, admitted=False)
    admitted = (state.admitted or event is Event.ADMIT) and phase not in _CLOSED
    pause_lasts = phase in (Phase.PAUSED, Phase.LOADING)
    return LifecycleState(
        phase,
        admitted=admitted,
        loaded=loaded and pause_lasts,
        idle=_is_idle(state, event, phase),
    )


def _is_idle(state: LifecycleState, event: Event, phase: Phase) -> bool:
    """Return whether the engine is idle after an event that has led to a phase."""
    if phase is Phase.LOADING:
        # As at the begin of the load: from paused, the worker may hold requests.
        return state.idle and event is not Event.NOT_IDLE
    if phase not in (Phase.JOINING, Phase.BROKEN):
        return False
    if event in _MAKES_IDLE:
        return True
    return state.idle and event is not Event.NOT_IDLE


def _is_busy(state: LifecycleState) -> bool:
    return state.phase is Phase.JOINING and not state.idle


def _refusal(state: LifecycleState, event: Event) -> Refusal:
    if state.phase is Phase.BROKEN:
        return Refusal(
            Reason.BROKEN,
            f"{event} is refused: a load failed inside the engine, and its weights are not trusted."
            " The worker reloads its last good version, or ends its process",
        )
    if event in _NEEDS_IDLE_ENGINE and _is_busy(state):
        return Refusal(
            Reason.WRONG_PHASE,
            f"{event} is refused: the latch is closed, but the engine is not idle yet. The worker"
            " keeps ending its requests, and ends its process if that fails",
        )
    return Refusal(Reason.WRONG_PHASE, f"{event} is refused: the worker is {state.phase}")
