"""Summarizes how much a version changed the model and how it was loaded, from the reports of the workers that
loaded it, and warns about one that changes nothing.
"""

from __future__ import annotations

from collections import Counter

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.condition_rows import Row
from fleet_operator.core.identity import short_digest
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.counts import counted
from fleet_worker.protocol import LoadEffect, WorkerState
from rlfleet_resources.fleet_status import PinnedWeights
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutEffect

MAX_MESSAGE_CHARACTERS = 512


def effect_of(
    observed: FleetObserved, desired: Checkpoint, before: RolloutEffect | None
) -> RolloutEffect | None:
    """Returns the change that the desired version made, if any worker reports it.

    Args:
        observed: The fleet. Workers that started on the version have nothing to compare it with.
        desired: The version.
        before: The last result; it stays while no worker reports a new one.
    """
    answered = observed.workers.where(
        lambda f: (
            f.has_effect
            and not f.pod.deleting
            and f.loaded is not None
            and f.loaded.version == desired.version
        )
    )
    known = [(w, w.state) for w in answered if w.state is not None]
    about = [(w, s, effect) for w, s in known if (effect := _about(s, desired)) is not None]
    reports = [effect for _, _, effect in about]
    if not reports:
        return before if before is not None and before.version == desired.version else None
    shares = [e.changed_share for e in reports if e.changed_share is not None]
    reason = next((e.why_not for e in reports if e.why_not), "")
    ((before_it, _),) = Counter(e.compared_with for e in reports).most_common(1)
    comparable = [(e, s.digest) for _, s, e in about if e.changed_share is not None]
    # Without a call for each worker: it would be in each decision about a fleet of thousands.
    loads = [(w, s.timings) for w, s, _ in about if s.timings and s.timings.in_place is not None]
    loads = [(w, t) for w, t in loads if t.version == desired.version]
    in_place = len([1 for _, t in loads if t.in_place])
    why_full = [f"{w.pod.name}: {t.why_full}" for w, t in loads if t.why_full][:1]
    return RolloutEffect(
        version=desired.version,
        compared_with=before_it,
        min_changed_share=_rounded(min(shares)) if shares else None,
        max_changed_share=_rounded(max(shares)) if shares else None,
        compared_workers=len(shares),
        not_comparable_workers=len(reports) - len(shares),
        unchanged=bool(comparable) and all(_left_no_trace(e, digest) for e, digest in comparable),
        message=reason[:MAX_MESSAGE_CHARACTERS],
        in_place_workers=in_place,
        full_workers=len(loads) - in_place,
        why_full="".join(why_full)[:MAX_MESSAGE_CHARACTERS],
    )


def warnings_of(rollout: RolloutPlan, effect: RolloutEffect | None) -> tuple[Row, ...]:
    """Returns the rows of `WeightsUnchanged`. Files that are the same are known by their digest, on every
    device and before any load. The measurements of workers count for other files.
    """
    same, unchanged = _same_files(rollout), _no_effect(rollout, effect)
    return (
        (same, True, ConditionReason.SAME_FILES, same),
        (unchanged, True, ConditionReason.NO_PARAMETER_CHANGED, unchanged),
    )


def _same_files(rollout: RolloutPlan) -> str:
    """Returns the warning about a version with the files of another one; empty if its files are its own."""
    desired, pin = rollout.desired, _pin_of(rollout, rollout.desired.version)
    if pin is None or pin.same_as is None or desired.reused:
        return ""
    return (
        f"version {desired.label} has the same files as version {pin.same_as} (digest "
        f"{short_digest(pin.digest)}), so it is the same model under another name. Check whether "
        f"spec.source follows the version: it is {pin.source}. Or the trainer wrote the weights of the "
        "step before"
    )


def _pin_of(rollout: RolloutPlan, version: str) -> PinnedWeights | None:
    """The pin of a version of the desired run."""
    key = (version, rollout.desired.run_id)
    return next((p for p in rollout.pinned if (p.version, p.run_id) == key), None)


def _no_effect(rollout: RolloutPlan, effect: RolloutEffect | None) -> str:
    """Returns the warning about a version of other files that changed nothing; empty if it did, or if that
    is unknown.
    """
    if effect is None or not effect.unchanged:
        return ""
    own, other = (_pin_of(rollout, v) for v in (effect.version, effect.compared_with))
    if own is not None and other is not None and own is not other and own.digest == other.digest:
        return ""
    workers = counted(effect.compared_workers, "worker")
    return (
        f"version {effect.version} changed no parameter of the model since version "
        f"{effect.compared_with}, at the served precision ({workers} compared). The version serves. "
        f"Check whether the trainer's update is too small for this precision, or whether the trainer "
        f"wrote the weights of the step before"
    )


def _about(state: WorkerState, desired: Checkpoint) -> LoadEffect | None:
    effect = state.effect
    if effect is None or state.version != desired.version or effect.version != desired.version:
        return None
    return effect if effect.run_id == desired.run_id else None


def _left_no_trace(effect: LoadEffect, digest: str | None) -> bool:
    """Whether the trainer made an update that left no trace in the model.

    There was no update if a run begins with the same files as another run's last version, or as the
    model.
    """
    same_files = digest is not None and digest == effect.compared_with_digest
    another_run = effect.run_id != effect.compared_with_run_id
    same_version = effect.version == effect.compared_with and not another_run
    return effect.unchanged and not same_version and not (same_files and another_run)


def _rounded(share: float) -> float:
    """Rounds to six digits, so that noise does not change the status at every reconcile."""
    return float(f"{share:.6g}")
