"""The outcome of a requested version, derived from its WeightVersion: pure, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rlfleet.errors import Refused, Superseded, TimedOut
from rlfleet.notebook import html
from rlfleet.resources import WeightVersion
from rlfleet.sources import Label, in_words, label_of
from rlfleet.words import seconds
from rlfleet_resources.conditions import Condition
from rlfleet_resources.weights_status import (
    HistoryEntry,
    RolloutEffect,
    RolloutTimings,
    RolloutWorkers,
)

ABSENT = "WaitingForCheckpoint"
"""The reason of `Ready` while no worker finds the directory of the version."""
ABSENT_SECONDS = 10.0
"""How long a publisher waits for a directory. Workers look for it every few seconds."""
AT_ONCE = {"NoWorkers": 0.0, "Suspended": 0.0}
"""Reasons of a false `Ready` that are known at once, and last until an object is changed."""
_KEEPS_FROM_BEGINNING = {ABSENT, *AT_ONCE}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Rollout:
    """A requested version, and the state of its rollout when the client read it last.

    Fields:
        applied: every worker with traffic serves it, or has served it before a newer version came.
        timings: of this rollout; zeros until its phases end. Of a version that was replaced before
            this client saw it applied, only the total and the longest pause are known.
        effect: what the version changed; None if no worker has reported it.
        unchanged: why the version seems to have changed nothing, the message of `WeightsUnchanged`; empty
            without this condition.
        remarks: what of the version's files workers ignore or cast, the message of `Remarks`; empty without.
        weights: the object that the other fields come from.
    """

    version: str
    run_id: str | None
    applied: bool
    timings: RolloutTimings
    workers: RolloutWorkers
    effect: RolloutEffect | None
    unchanged: str
    remarks: str
    weights: WeightVersion

    def __repr__(self) -> str:
        return f"<Rollout of {self._sentence()}>"

    def _repr_html_(self) -> str:
        """For notebooks. Source: IPython, "Rich display"."""
        notes = (
            f"WeightsUnchanged: {self.unchanged}" if self.unchanged else "",
            f"Remarks: {self.remarks}" if self.remarks else "",
        )
        return html(self._sentence(), notes, self.timings)

    def _sentence(self) -> str:
        counts, total = self.workers, self.timings.total_seconds
        state = "applied" if self.applied else "requested"
        if counts.total:
            state += f" on {counts.applied} of {counts.total} workers"
        if total:
            pause = seconds(self.timings.max_worker_pause_seconds)
            state += f" after {seconds(total)}, longest pause {pause}"
        label = in_words((self.version, self.run_id))
        return f"{self.weights.metadata.name}: version {label} is {state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A requested version, and the conditions under which a status is about it.

    Fields:
        generation: the generation of the spec that asks for it. An older status is ignored.
        retry: the value of the retry annotation that the status must have observed, or the newest one.
        known: the condition `Stalled` from before a retry. It is ignored until it changes.
        ended: rollouts that had ended before the request.
        patience: reasons of a false `Ready` that end the wait, and the seconds for which each is borne.
    """

    version: str
    run_id: str | None
    generation: int
    retry: str
    known: Condition | None = None
    ended: frozenset[HistoryEntry] = frozenset()
    patience: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def by(
        cls,
        written: WeightVersion,
        known: Condition | None = None,
        patience: Mapping[str, float] | None = None,
    ) -> Self:
        """The request in an object that the API server returned after a write."""
        return cls(
            version=written.spec.version,
            run_id=written.spec.run_id,
            generation=written.metadata.generation,
            retry=written.retry,
            known=known,
            ended=frozenset(written.status.history),
            patience=patience or {},
        )

    @property
    def label(self) -> Label:
        """Version and run."""
        return self.version, self.run_id


def outcome(asked: Asked, seen: WeightVersion) -> Rollout | None:
    """How the rollout has ended, or None while it continues. `seen`: the newest state of the object.

    Errors:
        Refused: the rollout has stalled, and needs attention. Or it had when another version replaced it.
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
    if label_of(seen) == asked.label:
        return None
    for entry in seen.status.history:
        was_it = (entry.version, entry.run_id) == asked.label and entry not in asked.ended
        if was_it and entry.result == "Applied":
            return _applied_before(seen, entry)
        if was_it and entry.result == "Refused":
            raise Refused(asked.version, entry.reason, entry.message)
    raise Superseded(asked.version, in_words(label_of(seen)), seen.writer)


def obstacle(asked: Asked, seen: WeightVersion) -> Condition | None:
    """The false `Ready` of a rollout that does not begin, if the request bears its reason for a limited time."""
    found = _kept_from_beginning(asked, seen)
    return found if found is not None and found.reason in asked.patience else None


def refusal(asked: Asked, condition: Condition) -> Refused:
    """The error for an obstacle. The version stays desired, so it names the ways to go on."""
    message = (
        f"{condition.message}. Version {asked.version} stays desired: the fleet still waits for it, and "
        "undo takes it back"
    )
    return Refused(asked.version, condition.reason, message)


def unfinished(asked: Asked, seen: WeightVersion) -> Refused | TimedOut:
    """The error when the time is over. `seen`: the newest state of the object."""
    stalled = trouble_of(seen)
    if stalled is not None and stalled == asked.known and is_about(asked, seen):
        return Refused(asked.version, stalled.reason, stalled.message)
    if (obstructing := obstacle(asked, seen)) is not None:
        return refusal(asked, obstructing)
    status = seen.status
    cause = _kept_from_beginning(asked, seen)
    progressing = seen.condition("Progressing")
    if not is_about(asked, seen):
        state = "the operator has not observed it; check that an operator runs (kubectl get ifl,wv)"
    elif seen.spec.suspend:
        state = "the rollout is suspended; resume continues it"
    else:
        note = f": {progressing.message}" if progressing and progressing.message else ""
        note = f": {cause.reason}: {cause.message}" if cause is not None else note
        state = f"phase {status.phase or 'unknown'}, {status.workers_applied} workers{note}"
    name = seen.metadata.name
    return TimedOut(
        asked.version,
        f"version {asked.version} of {name} is not applied yet: {state}. "
        "It stays desired: wait again, or take it back with undo",
    )


def is_about(asked: Asked, seen: WeightVersion) -> bool:
    """Whether the status is about the request: not about an older generation, nor from before a retry.

    The status of an object that steers no fleet has neither a retry nor the start of a rollout.
    """
    status = seen.status
    # The newest retry may be a later one, of another writer.
    retries = {asked.retry, seen.retry}
    after_retry = status.retried in retries or status.started_at is None
    return status.observed_generation >= asked.generation and after_retry


def patience(*, wait_for_files: bool) -> Mapping[str, float]:
    """How long the publisher of a version waits for what keeps its rollout from beginning. See `Asked`."""
    return AT_ONCE if wait_for_files else AT_ONCE | {ABSENT: ABSENT_SECONDS}


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
        unchanged=message_of(seen, "WeightsUnchanged") if about else "",
        remarks=message_of(seen, "Remarks") if about else "",
        weights=seen,
    )


def message_of(seen: WeightVersion, kind: str) -> str:
    """The message of a condition, if it is true; else empty."""
    found = seen.condition(kind)
    return found.message if found is not None and found.status == "True" else ""


def trouble_of(seen: WeightVersion) -> Condition | None:
    """The condition `Stalled`, if it is true."""
    found = seen.condition("Stalled")
    return found if found is not None and found.status == "True" else None


def left_base(seen: WeightVersion | None, label: Label) -> str:
    """Why the next version should not need the files of one that was published; empty if it may.

    `seen`: the object now; None if it does not exist.
    """
    if seen is None:
        return "the object was deleted"
    if label_of(seen) != label:
        return f"the object asks for version {in_words(label_of(seen))}, not for {in_words(label)}"
    if stalled := trouble_of(seen):
        return f"version {in_words(label)} has stalled: {stalled.reason}"
    ready = seen.condition("Ready")
    absent = ready is not None and ready.reason == ABSENT
    return f"no worker has found version {in_words(label)}" if absent else ""


def _kept_from_beginning(asked: Asked, seen: WeightVersion) -> Condition | None:
    """The false `Ready` of a rollout that does not begin."""
    ready, status = seen.condition("Ready"), seen.status
    if ready is None or ready.status != "False" or not is_about(asked, seen):
        return None
    desired = (status.desired_version, status.desired_run_id)
    is_meant = desired in {asked.label, (None, None)} and label_of(seen) == asked.label
    return ready if is_meant and ready.reason in _KEEPS_FROM_BEGINNING else None


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
        unchanged="",
        remarks="",
        weights=seen,
    )
