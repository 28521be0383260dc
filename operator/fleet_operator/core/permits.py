"""The last word on calls to workers: one ordered chain of permits.

    within capacity  no swap begins together with a drain: it relies on the workers that serve
    alone            where versions must not mix, none opens while another may generate other weights
    recorded         the operation in progress is stored before a worker is away for it, and before one opens
                     at other weights than the stored status names (`transition`)
    pinned           weights serve with the digest of their stored pin only (`pins`)
    fresh            where too old weights must not serve, a worker opens when it knows the limits
    has a place      at most `maxStaging` workers read one checkpoint at once (`staging`). One that can read
                     from peers waits for them (`peers`)

A planner wishes calls. A later wish for the same worker is the better one: a renewal of a pause comes after
a load, a fence after the renewal. Each worker gets its last wish that all permits allow. Nothing adds,
removes or replaces a call afterwards. A wish that is not permitted has its reason, which the conditions tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, TypeVar

from fleet_operator.core.actions import Admit, Apply, Load, Pause, PutLora, WorkerCall
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import Named, WeightsId
from fleet_operator.core.messages import named
from fleet_operator.core.pins import Pins
from fleet_operator.core.pod_actions import OnPod, Quarantine
from fleet_operator.core.staging import Places
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.transition import takes_away
from fleet_operator.core.work import WorkKind
from fleet_operator.counts import agree
from rlfleet_resources.weights_status import RolloutPhase

_BRINGS_BYTES = frozenset(call.kind for call in (Load, Apply, Admit, PutLora))
"""A paused worker that resumes generates with bytes that it had before."""
C = TypeVar("C", bound=OnPod)


class Why(NamedTuple):
    """Why a call is not permitted.

    Fields:
        text: in words, without running clocks.
        until_stored: it ends with a write of the fleet's status, so no status tells it.
    """

    text: str
    until_stored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts that the permits look at.

    Fields:
        goal: what the step works towards.
        named: the weights that the stored status names: as applied, and as those that the fleet goes to.
        held: uids of members that hold their requests.
        drain_begins: a worker begins to drain with this decision.
        others: the names of workers that may generate other weights, by the weights at which workers open.
        is_recorded: the operation in progress is stored.
        pins: of the base weights, or of the adapter.
        places: of workers that read; None if any number may.
        unaware: uids of workers that must know the limits of `spec.staleness` before they open.
    """

    goal: Checkpoint | None = None
    named: tuple[Checkpoint, ...] = ()
    held: AbstractSet[str] = frozenset()
    drain_begins: bool = False
    others: Mapping[WeightsId, str] = field(default_factory=dict)
    is_recorded: bool = True
    pins: Pins = field(default_factory=Pins)
    places: Places | None = None
    unaware: AbstractSet[str] = frozenset()


def _within_capacity(_: WorkerCall, now: Situation) -> Why | None:
    return Why("another worker begins to drain") if now.drain_begins else None


def _alone(call: WorkerCall, now: Situation) -> Why | None:
    others = now.others.get(WeightsId.of(call)) if now.others else None
    return Why(f"these may generate other weights: {others}") if others else None


def _recorded(call: WorkerCall, now: Situation) -> Why | None:
    if now.is_recorded or not takes_away(call, now.held, now.named):
        return None
    return Why("the operation in progress is not stored yet", until_stored=True)


def _pinned(call: WorkerCall, now: Situation) -> Why | None:
    """Pauses wait for the pin of the goal, too: otherwise workers would stay paused for as long as the API
    server accepts no write.
    """
    weights: Named | None = call
    if call.kind == Pause.kind:
        weights = None if call.pod_uid in now.held else now.goal
    if weights is None:
        return None
    pin = now.pins.of(weights)
    if pin is None:
        unread = call.kind in _BRINGS_BYTES and now.pins.unread.may_name(call)
        return Why("the pin of its version cannot be read") if unread else None
    if weights.digest not in {None, pin.digest}:
        return Why("the digest of its weights differs from the pin of their version")
    if now.pins.stored.get((pin.version, pin.run_id)) == pin.digest:
        return None
    return Why("the pin of its version is not stored yet", until_stored=True)


def _fresh(call: WorkerCall, now: Situation) -> Why | None:
    return Why("spec.staleness is not known there yet") if call.pod_uid in now.unaware else None


def _has_place(call: WorkerCall, now: Situation) -> Why | None:
    if now.places is None or now.places.permit(call):
        return None
    if call.pod_uid in now.places.waiting:
        return Why("no peer with the version can serve it yet")
    return Why(now.places.rule)


PERMITS: Mapping[Callable[[WorkerCall, Situation], Why | None], AbstractSet[WorkKind]] = {
    _within_capacity: {"apply"},
    _alone: {"resume", "admit"},
    _recorded: {"pause", "apply", "resume", "admit"},
    _pinned: {"pause", "load", "apply", "adapter", "resume", "admit"},
    _fresh: {"admit"},
    _has_place: {"stage", "compare", "adapter", "stage-adapter", "compare-adapter"},
}
"""The permits, in order, and the calls that need them."""


def why_not(call: WorkerCall, now: Situation) -> Why | None:
    """Why a call is not permitted; None if it is."""
    for permit, calls in PERMITS.items():
        why = permit(call, now) if call.kind in calls else None
        if why is not None:
            return why
    return None


def permitted(step: Step, now: Situation) -> tuple[Step, bool]:
    """The step with at most one action for each worker: its quarantine, which needs no permit, or else its
    last wish that is permitted.

    Returns: the step, and whether calls wait for the fleet's status to be stored.
    """
    if not step.actions:
        return step, False
    quarantines = {a.pod_uid: a for a in step.actions if isinstance(a, Quarantine)}
    chosen: dict[str, WorkerCall] = {}
    refused: dict[Why, list[str]] = {}
    for wish in step.actions:
        if isinstance(wish, Quarantine) or wish.pod_uid in quarantines:
            continue
        why = why_not(wish, now)
        if why is None:
            chosen[wish.pod_uid] = wish
        else:
            refused.setdefault(why, []).append(wish.pod_name)
    waits = any(why.until_stored for why in refused)
    # Otherwise workers would be late while the API server accepts no write.
    early = waits and step.phase is RolloutPhase.PAUSING
    told = [
        f"{named(names, len(names))} {agree(len(names), 'waits', 'wait')}: {why.text}"
        for why, names in refused.items()
        if not why.until_stored
    ]
    phase = RolloutPhase.STAGING if early else step.phase
    actions = (*chosen.values(), *quarantines.values())
    return replace(step, actions=actions, phase=phase, waiting="; ".join(told)), waits


def first_calls(*plans: Iterable[C], but: AbstractSet[str] = frozenset()) -> tuple[C, ...]:
    """At most one call for each worker: from the first plan that has one for it. `but`: uids without one."""
    chosen: dict[str, C] = {}
    for call in chain.from_iterable(plans):
        if call.pod_uid not in but:
            chosen.setdefault(call.pod_uid, call)
    return tuple(chosen.values())
