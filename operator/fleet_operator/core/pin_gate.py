"""Keeps weights without a stored pin, with another digest than their pin, or with a pin that cannot be read,
from serving.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Admit, Apply, Load, Pause, PutLora, Resume, WorkerCall
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import TRANSFERRED_DIGEST, Named
from fleet_operator.core.pins import Pins
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.precedence import called_only_by
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.worker_view import WorkerView

_GATED = (Load, Apply, Resume, Admit, PutLora)
_BRINGS_BYTES = (Load, Apply, Admit, PutLora)
"""A paused worker that resumes generates with bytes that it had before."""


def require_pins(step: Step, pins: Pins, held: Collection[WorkerView] = ()) -> tuple[Step, bool]:
    """The step without calls for weights whose pin is not stored, or that differ from their pin.

    Pauses wait for the pin, too: otherwise workers would stay paused for as long as the API
    server accepts no write.

    Args:
        step: The step of the strategy.
        pins: The pins of the fleet, or of an adapter.
        held: Members that are paused already; their pauses are renewed.

    Returns: the step, and whether it waits for a pin to be stored.
    """
    uids = {w.pod.uid for w in held}
    known = {(e.version, e.run_id): e for e in reversed(pins.entries)}  # the newest counts
    kept: list[WorkerCall | Quarantine] = []
    waits = False
    for action in step.actions:
        named: Named | None = None
        if isinstance(action, _GATED):
            named = action
        elif isinstance(action, Pause) and action.pod_uid not in uids:
            named = step.goal
        pin = known.get((named.version, named.run_id)) if named is not None else None
        if isinstance(action, _BRINGS_BYTES) and pins.is_unread(action):
            continue
        if named is None or pin is None:
            kept.append(action)
        elif named.digest in {None, pin.digest}:
            stored = pins.stored.get((pin.version, pin.run_id)) == pin.digest
            waits = waits or not stored
            kept += [action] if stored else []
    if len(kept) == len(step.actions):
        return step, waits
    early = waits and step.phase is RolloutPhase.PAUSING and not held
    phase = RolloutPhase.STAGING if early else step.phase
    return replace(step, actions=tuple(kept), phase=phase), waits


def expel_others(step: Step, pins: Pins, members: Workers, how: Rollout) -> Step:
    """The step, with calls that close members whose digest differs from the pin of their version."""
    pinned = {(e.version, e.run_id): e.digest for e in pins.entries}

    def differs(worker: Facts) -> bool:
        loaded = worker.loaded
        if loaded is None or loaded.digest in {None, TRANSFERRED_DIGEST}:
            return False
        return pinned.get((loaded.version, loaded.run_id), loaded.digest) != loaded.digest

    others = {m.pod.uid: m for m in members.where(differs)}
    if not others:
        return step
    reason = "the digest of its weights differs from the pin of their version"
    expelled = (
        worker_calls.drain_out_of_service(m, how, reason=reason)
        for m in others.values()
        if not m.is_doing("fence")
    )
    return replace(step, actions=called_only_by(others, expelled, step.actions))
