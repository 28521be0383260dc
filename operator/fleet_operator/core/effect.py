"""What a version changed in the model, put together from what workers say of their last load."""

from __future__ import annotations

from collections import Counter

from fleet_operator.api.weights import RolloutEffect
from fleet_operator.core.counts import counted
from fleet_operator.core.observed import FleetObserved, Target
from fleet_worker.protocol import LoadEffect, WorkerState

MAX_MESSAGE_CHARACTERS = 512


def effect_of(
    observed: FleetObserved, desired: Target, before: RolloutEffect | None
) -> RolloutEffect | None:
    """What the desired version has changed, as far as it is known.

    Args:
        observed: The fleet; workers that have started on the version, instead of loading it, have
            nothing to compare it with.
        desired: The version.
        before: What was known; it is kept while no worker says more.
    """
    states = [w.state for w in observed.workers if w.state is not None and not w.pod.deleting]
    said = [effect for state in states if (effect := _about(state, desired)) is not None]
    if not said:
        return before if before is not None and before.version == desired.version else None
    shares = [e.changed_share for e in said if e.changed_share is not None]
    why_not = next((e.why_not for e in said if e.why_not), "")
    ((since, _),) = Counter(e.compared_with for e in said).most_common(1)
    comparable = [(e, s.digest) for e, s in _comparable(states, desired)]
    return RolloutEffect(
        version=desired.version,
        compared_with=since,
        min_changed_share=_rounded(min(shares)) if shares else None,
        max_changed_share=_rounded(max(shares)) if shares else None,
        compared_workers=len(shares),
        not_comparable_workers=len(said) - len(shares),
        unchanged=bool(comparable) and all(_vanished(e, digest) for e, digest in comparable),
        message=why_not[:MAX_MESSAGE_CHARACTERS],
    )


def warning_of(effect: RolloutEffect | None) -> str:
    """What to say of a version that has changed nothing; empty if it has, or nothing is known."""
    if effect is None or not effect.unchanged:
        return ""
    workers = counted(effect.compared_workers, "worker")
    return (
        f"version {effect.version} has changed no parameter of the model since version "
        f"{effect.compared_with} at the precision that is served ({workers} compared). It serves, but "
        f"it trains nothing: look whether the trainer's update is smaller than that precision can "
        f"hold, or whether it has written the weights of the step before"
    )


def _about(state: WorkerState, desired: Target) -> LoadEffect | None:
    effect = state.effect
    if effect is None or state.version != desired.version or effect.version != desired.version:
        return None
    return effect if effect.run_id == desired.run_id else None


def _comparable(states: list[WorkerState], desired: Target) -> list[tuple[LoadEffect, WorkerState]]:
    about = [(_about(state, desired), state) for state in states]
    return [(e, s) for e, s in about if e is not None and e.changed_share is not None]


def _vanished(effect: LoadEffect, digest: str | None) -> bool:
    """Whether an update was made and nothing of it is in the model.

    A run that begins with the very files that another one ended with, or that were the model, has
    made none.
    """
    same_files = digest is not None and digest == effect.compared_with_digest
    another_run = effect.run_id != effect.compared_with_run_id
    same_version = effect.version == effect.compared_with and not another_run
    return effect.unchanged and not same_version and not (same_files and another_run)


def _rounded(share: float) -> float:
    """Six digits: more would be written at every look, and say nothing."""
    return float(f"{share:.6g}")
