"""The worker's states and the only ways between them.

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

* `admitted` (the latch is open) only in serving, pausing, paused, and in loading from paused.
* Nothing but `recovered` and `drain` leaves broken; nothing leaves draining.
* Only `admit` opens the latch.
* The latch can close in the middle of other work. The phase follows at the end of that work: a closed
  worker is never serving or paused once nothing is under way.
* A closed worker is at rest (its engine was seen paused, with no request left) or not. One that is not
  at rest takes no load, no pause and no admission until its engine has come to rest.

`contradiction` says the same of a worker and its engine together; it is checked after every call of
the agent with every call of the engine failing inside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Phase, Reason


class Event(StrEnum):
    """What happens to a worker: calls of a driver, and what became of them."""

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
    """The latch is closed and the engine was brought to rest."""
    LEASE_EXPIRED = "lease expired"
    NOT_AT_REST = "not at rest"
    """The latch is closed, and the engine may still hold requests or generate."""
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands.

    Fields:
        admitted: The latch is open: data requests are taken (and held, while paused).
        loaded: The weights have changed since the pause began.
        at_rest: The latch is closed, and the engine was seen paused with no request left.
    """

    phase: Phase
    admitted: bool = False
    loaded: bool = False
    at_rest: bool = False


CALLS = (Event.PAUSE, Event.LOAD, Event.RESUME, Event.ADMIT, Event.FENCE, Event.DRAIN)
"""The events that a driver asks for; all others are results."""

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
    (Phase.JOINING, Event.NOT_AT_REST): Phase.JOINING,
    (Phase.SERVING, Event.NOT_AT_REST): Phase.JOINING,
    (Phase.PAUSING, Event.NOT_AT_REST): Phase.JOINING,
    (Phase.PAUSED, Event.NOT_AT_REST): Phase.JOINING,
    (Phase.LOADING, Event.NOT_AT_REST): Phase.LOADING,
    (Phase.BROKEN, Event.NOT_AT_REST): Phase.BROKEN,
    (Phase.BROKEN, Event.RECOVERED): Phase.JOINING,
    (Phase.BROKEN, Event.FENCE): Phase.BROKEN,
}

_NEEDS_REST = frozenset({Event.LOAD, Event.ADMIT})
_BROUGHT_TO_REST = frozenset({Event.READY, Event.FENCE, Event.LEASE_EXPIRED, Event.RECOVERED})
_OPEN = frozenset({Phase.SERVING, Phase.PAUSED})
_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})


def after(standing: Standing, event: Event) -> Standing:
    """Where the worker stands after an event.

    Errors:
        Refusal: the event does not fit the phase (`Broken` or `WrongPhase`); nothing changes.
    """
    if event is Event.DRAIN:
        return Standing(Phase.DRAINING)
    phase = _NEXT.get((standing.phase, event))
    if phase is None or (event in _NEEDS_REST and _is_restless(standing)):
        raise _refusal(standing, event)
    loaded = standing.loaded or event is Event.LOADED
    if event is Event.LEASE_EXPIRED and standing.loaded:
        phase = Phase.JOINING  # nobody vouches for the new weights: wait for the operator
    if (
        phase in (Phase.PAUSED, Phase.SERVING)
        and not standing.admitted
        and event is not Event.ADMIT
    ):
        phase = Phase.JOINING  # the latch was closed while the work was under way
    if event in (Event.FENCE, Event.NOT_AT_REST):
        standing = replace(standing, admitted=False)
    admitted = (standing.admitted or event is Event.ADMIT) and phase not in _CLOSED
    keeps = phase in (Phase.PAUSED, Phase.LOADING)
    return Standing(
        phase,
        admitted=admitted,
        loaded=loaded and keeps,
        at_rest=_at_rest(standing, event, phase),
    )


def _at_rest(standing: Standing, event: Event, phase: Phase) -> bool:
    """Whether a worker is at rest after an event that has led to a phase."""
    if phase is Phase.LOADING:
        # It is as it was when the load began: from paused, requests may be held.
        return standing.at_rest and event is not Event.NOT_AT_REST
    if phase not in (Phase.JOINING, Phase.BROKEN):
        return False
    if event in _BROUGHT_TO_REST:
        return True
    return standing.at_rest and event is not Event.NOT_AT_REST


def _is_restless(standing: Standing) -> bool:
    return standing.phase is Phase.JOINING and not standing.at_rest


def contradiction(
    standing: Standing, *, paused: bool, unfinished: int, under_way: bool = False
) -> str | None:
    """How a worker contradicts its engine, in words; None if the two fit together.

    Args:
        standing: Of the worker.
        paused: Whether the engine generates nothing.
        unfinished: How many requests are in the engine, running or held.
        under_way: A call is at work, or has closed the latch and waits for its turn. What such a
            call is about to mend is no contradiction.
    """
    phase, closed = standing.phase, not standing.admitted
    always = {
        "the engine generates while its weights change": phase is Phase.LOADING and not paused,
        f"the latch of a worker that is {phase} is open": phase in _CLOSED and not closed,
        "a worker that is at rest has an open latch": standing.at_rest and not closed,
    }
    settled = {
        "the worker is pausing, and no call is at work on it": phase is Phase.PAUSING,
        f"the worker is {phase}, and its latch is closed": phase in _OPEN and closed,
        "the worker serves, and its engine is paused": phase is Phase.SERVING and paused,
        "the worker is paused, and its engine generates": phase is Phase.PAUSED and not paused,
        "the worker is at rest, and its engine generates": standing.at_rest and not paused,
        "the worker is at rest, and its engine has requests": standing.at_rest and unfinished > 0,
    }
    found = always if under_way else always | settled
    return next((words for words, is_so in found.items() if is_so), None)


def _refusal(standing: Standing, event: Event) -> Refusal:
    if standing.phase is Phase.BROKEN:
        return Refusal(
            Reason.BROKEN,
            f"{event} is refused: a load failed inside the engine and its weights are not to be"
            " trusted; the worker reloads its last good version or ends",
        )
    if event in _NEEDS_REST and _is_restless(standing):
        return Refusal(
            Reason.WRONG_PHASE,
            f"{event} is refused: the engine has not come to rest since the latch was closed. The"
            " worker keeps ending its requests, and ends its process if that does not succeed",
        )
    return Refusal(Reason.WRONG_PHASE, f"{event} does not fit a worker that is {standing.phase}")
