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
    LEASE_EXPIRED = "lease expired"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands.

    Fields:
        admitted: The latch is open: data requests are taken (and held, while paused).
        loaded: The weights have changed since the pause began.
    """

    phase: Phase
    admitted: bool = False
    loaded: bool = False


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
    (Phase.BROKEN, Event.RECOVERED): Phase.JOINING,
    (Phase.BROKEN, Event.FENCE): Phase.BROKEN,
}

_CLOSED = frozenset({Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING})


def after(standing: Standing, event: Event) -> Standing:
    """Where the worker stands after an event.

    Errors:
        Refusal: the event does not fit the phase (`Broken` or `WrongPhase`); nothing changes.
    """
    if event is Event.DRAIN:
        return Standing(Phase.DRAINING)
    phase = _NEXT.get((standing.phase, event))
    if phase is None:
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
    if event is Event.FENCE:
        standing = replace(standing, admitted=False)
    admitted = (standing.admitted or event is Event.ADMIT) and phase not in _CLOSED
    keeps = phase in (Phase.PAUSED, Phase.LOADING)
    return Standing(phase, admitted=admitted, loaded=loaded and keeps)


def _refusal(standing: Standing, event: Event) -> Refusal:
    if standing.phase is Phase.BROKEN:
        return Refusal(
            Reason.BROKEN,
            f"{event} is refused: a load failed inside the engine and its weights are not to be"
            " trusted; the worker reloads its last good version or ends",
        )
    return Refusal(Reason.WRONG_PHASE, f"{event} does not fit a worker that is {standing.phase}")
