"""The outcome of a requested version, read off its WeightVersion: pure, no clock, no I/O."""

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
    WeightsSpec,
    WeightVersion,
)

Label = tuple[str, str | None]
"""Version and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A requested version, as it was seen last.

    Fields:
        applied: every worker with traffic serves it, or has served it before a newer version came.
        timings: of this rollout; zeros until its phases end. Of a version that was replaced before
            this client saw it applied, only the total and the longest pause are known.
        effect: what the version changed; None if no worker has reported it.
        weights: the object that this was read from.
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
    """A requested version, and which looks may answer for it.

    Fields:
        generation: of the spec that asks for it; a status of an older one says nothing.
        retry: value of the retry annotation that the status must speak of.
        known: the trouble from before a retry; it says nothing until it changes.
        ended: rollouts that had ended before.
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
    """How the rollout has ended, or None while it goes on. `seen`: the object that was written.

    Errors:
        Refused: the rollout has stalled: nothing passes by itself in time.
        Superseded: another version is desired, and this one was not applied.
    """
    if _is_about(asked, seen):
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
    raise Superseded(asked.version, _in_words(seen.spec))


def unfinished(asked: Asked, seen: WeightVersion, timeout_seconds: float) -> Refused | TimedOut:
    """The error when the time is over. `seen`: the last look."""
    stalled = trouble_of(seen)
    if stalled is not None and stalled == asked.known and _is_about(asked, seen):
        return Refused(asked.version, stalled.reason, stalled.message)
    status = seen.status
    progressing = seen.condition("Progressing")
    if not _is_about(asked, seen):
        standing = "the operator has not looked at it; see whether one runs (kubectl get ifl,wv)"
    elif seen.spec.suspend:
        standing = "the rollout is suspended; resume() lets it go on"
    else:
        note = f": {progressing.message}" if progressing and progressing.message else ""
        standing = f"phase {status.phase or 'unknown'}, {status.workers_applied} workers{note}"
    name = seen.metadata.name
    return TimedOut(
        asked.version,
        f"version {asked.version} of {name} is not applied after {timeout_seconds:g} s: {standing}. "
        "It stays desired: wait again, or roll back",
    )


def rollout_of(seen: WeightVersion, label: Label, *, applied: bool) -> Rollout:
    """A rollout as the status shows it; no timings while the status is about another one."""
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

    A digest that an earlier version left is always replaced or removed: it names other files.
    """
    spec: dict[str, Any] = {"version": version, "digest": digest}
    if path is not None:
        spec["source"] = {"path": path, "huggingFace": None}
    if run_id is not None:
        spec["runID"] = run_id
    return spec


def rollback_patches(
    seen: WeightVersion, version: str, source: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """The specs of the merge patches that go back to a version, in order; none if it is desired.

    `rollbackTo` permits one step back when it becomes the version, so one that names it already is
    removed first. `source`: where the version is, if it differs from what the spec names.
    """
    if seen.spec.version == version:
        return []
    back: dict[str, Any] = {"version": version, "rollbackTo": version, "digest": None}
    if source is not None:
        back["source"] = {"path": None, "huggingFace": None} | source
    return [{"rollbackTo": None}, back] if seen.spec.rollback_to == version else [back]


def _is_about(asked: Asked, seen: WeightVersion) -> bool:
    """Whether the status speaks of the request: not of an older generation, nor from before a retry.

    A status of an object that steers nothing names no retry, and no start of a rollout.
    """
    status = seen.status
    after_retry = status.retried == asked.retry or status.started_at is None
    return status.observed_generation >= asked.generation and after_retry


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


def _in_words(spec: WeightsSpec) -> str:
    return spec.version if spec.run_id is None else f"{spec.version} of run {spec.run_id}"
