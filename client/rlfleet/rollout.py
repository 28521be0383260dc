"""The outcome of a requested version, derived from its WeightVersion: pure, no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rlfleet.errors import Refused, Superseded, TimedOut
from rlfleet.resources import (
    RETRY,
    Condition,
    HistoryEntry,
    RolloutEffect,
    RolloutTimings,
    RolloutWorkers,
    WeightSource,
    WeightsSpec,
    WeightVersion,
)

Label = tuple[str, str | None]
"""Version and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A requested version, and the state of its rollout when the client read it last.

    Fields:
        applied: every worker with traffic serves it, or has served it before a newer version came.
        timings: of this rollout; zeros until its phases end. Of a version that was replaced before
            this client saw it applied, only the total and the longest pause are known.
        effect: what the version changed; None if no worker has reported it.
        weights: the object that the other fields come from.
    """

    version: str
    run_id: str | None
    applied: bool
    timings: RolloutTimings
    workers: RolloutWorkers
    effect: RolloutEffect | None
    weights: WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A requested version, and the conditions under which a status is about it.

    Fields:
        generation: the generation of the spec that asks for it. An older status is ignored.
        retry: the value of the retry annotation that the status must have observed, or the newest one.
        known: the condition `Stalled` from before a retry. It is ignored until it changes.
        ended: rollouts that had ended before the request.
    """

    version: str
    run_id: str | None
    generation: int
    retry: str
    known: Condition | None = None
    ended: frozenset[HistoryEntry] = frozenset()

    @classmethod
    def by(cls, written: WeightVersion, known: Condition | None = None) -> Self:
        """The request in an object that the API server returned after a write."""
        return cls(
            version=written.spec.version,
            run_id=written.spec.run_id,
            generation=written.metadata.generation,
            retry=written.metadata.annotations.get(RETRY, ""),
            known=known,
            ended=frozenset(written.status.history),
        )

    @property
    def label(self) -> Label:
        """Version and run."""
        return self.version, self.run_id


def outcome(asked: Asked, seen: WeightVersion) -> Rollout | None:
    """How the rollout has ended, or None while it continues. `seen`: the newest state of the object.

    Errors:
        Refused: the rollout has stalled, and needs attention.
        Superseded: another version is desired, and this one was not applied.
    """
    if is_about(asked, seen):
        status = seen.status
        desired = (status.desired_version, status.desired_run_id)
        if status.phase == "Applied" and desired == asked.label:
            return rollout_of(seen, asked.label, applied=True)
        stalled = trouble_of(seen)
        if stalled and stalled != asked.known and desired in {asked.label, (None, None)}:
            raise Refused(asked.version, stalled.reason, stalled.message)
    if _label(seen.spec) == asked.label:
        return None
    for entry in seen.status.history:
        was_it = (entry.version, entry.run_id) == asked.label and entry not in asked.ended
        if was_it and entry.result == "Applied":
            return _applied_before(seen, entry)
    raise Superseded(asked.version, _described(seen.spec))


def unfinished(asked: Asked, seen: WeightVersion, timeout_seconds: float) -> Refused | TimedOut:
    """The error when the time is over. `seen`: the newest state of the object."""
    stalled = trouble_of(seen)
    if stalled is not None and stalled == asked.known and is_about(asked, seen):
        return Refused(asked.version, stalled.reason, stalled.message)
    status = seen.status
    progressing = seen.condition("Progressing")
    if not is_about(asked, seen):
        state = "the operator has not observed it; check that an operator runs (kubectl get ifl,wv)"
    elif seen.spec.suspend:
        state = "the rollout is suspended; resume() continues it"
    else:
        note = f": {progressing.message}" if progressing and progressing.message else ""
        state = f"phase {status.phase or 'unknown'}, {status.workers_applied} workers{note}"
    name = seen.metadata.name
    return TimedOut(
        asked.version,
        f"version {asked.version} of {name} is not applied after {timeout_seconds:g} s: {state}. "
        "It stays desired: wait again, or roll back",
    )


def is_about(asked: Asked, seen: WeightVersion) -> bool:
    """Whether the status is about the request: not about an older generation, nor from before a retry.

    The status of an object that steers no fleet has neither a retry nor the start of a rollout.
    """
    status = seen.status
    # The newest retry may be a later one, of another writer.
    retries = {asked.retry, seen.metadata.annotations.get(RETRY, "")}
    after_retry = status.retried in retries or status.started_at is None
    return status.observed_generation >= asked.generation and after_retry


def rollout_of(seen: WeightVersion, label: Label, *, applied: bool) -> Rollout:
    """The rollout of a version as the status shows it. It has no timings if the status is about another."""
    version, run_id = label
    status = seen.status
    about = (status.desired_version, status.desired_run_id) == label
    return Rollout(
        version=version,
        run_id=run_id,
        applied=applied,
        timings=status.timings if about else RolloutTimings(),
        workers=status.workers if about else RolloutWorkers(),
        effect=status.effect
        if about and status.effect and status.effect.version == version
        else None,
        weights=seen,
    )


def trouble_of(seen: WeightVersion) -> Condition | None:
    """The condition `Stalled`, if it is true."""
    found = seen.condition("Stalled")
    return found if found is not None and found.status == "True" else None


def publish_patch(
    version: str, *, path: str | None = None, digest: str | None = None, run_id: str | None = None
) -> dict[str, Any]:
    """The spec of a merge patch that asks for a version.

    It always replaces or removes the digest of the version before, which names other files.
    """
    spec: dict[str, Any] = {"version": version, "digest": digest}
    if path is not None:
        spec["source"] = {"path": path, "huggingFace": None}
    if run_id is not None:
        spec["runID"] = run_id
    return spec


def rollback_patches(
    seen: WeightVersion, version: str, source: WeightSource | None
) -> list[dict[str, Any]]:
    """The specs of the merge patches that go back to a version, in order; none if it is desired.

    A change of `rollbackTo` to the version permits one step back. So a `rollbackTo` that names the
    version already is removed first. `source`: the version's source, if it differs from the spec's.
    """
    if seen.spec.version == version:
        return []
    # Run and source always go together. Another trainer may have started a run since the spec was read.
    back = {
        "version": version,
        "runID": seen.spec.run_id,
        "rollbackTo": version,
        "digest": None,
        "source": (source or seen.spec.source).model_dump(by_alias=True),
    }
    return [{"rollbackTo": None}, back] if seen.spec.rollback_to == version else [back]


def _applied_before(seen: WeightVersion, entry: HistoryEntry) -> Rollout:
    timings = RolloutTimings(
        total_seconds=entry.total_seconds, max_worker_pause_seconds=entry.max_worker_pause_seconds
    )
    return Rollout(
        version=entry.version,
        run_id=entry.run_id,
        applied=True,
        timings=timings,
        workers=RolloutWorkers(),
        effect=None,
        weights=seen,
    )


def _label(spec: WeightsSpec) -> Label:
    return spec.version, spec.run_id


def _described(spec: WeightsSpec) -> str:
    return spec.version if spec.run_id is None else f"{spec.version} of run {spec.run_id}"
