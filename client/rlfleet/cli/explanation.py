"""Explain what holds a rollout, and the remedy: pure, read off the objects."""

from __future__ import annotations

from datetime import datetime

from rlfleet.cli.reasons import MEANINGS
from rlfleet.cli.view import RolloutView, rollout_view
from rlfleet.resources import Condition, InferenceFleet, Resource, WeightVersion

_AGAIN = (
    "repair the files: rlfleet looks at them again by itself",
    "publish another version: rlfleet publish VERSION {name} -n {namespace}",
    "try this version again: rlfleet retry {name} -n {namespace}",
)
_REMEDIES = {
    "RewindRefused": ("go back on purpose: rlfleet rollback {desired} {name} -n {namespace}",),
    "Suspended": ("let it continue: rlfleet resume {name} -n {namespace}",),
    "WaitingForCheckpoint": ("write the checkpoint's directory, or publish another version",),
    "WorkersFailing": ("look at the pods: kubectl -n {namespace} describe pods",),
    "FleetNotFound": ("create the fleet {fleet} in namespace {namespace}",),
}
_FILES = ("Checkpoint", "Digest", "Source", "Canary", "FailureBudget", "DeadlineExceeded")
"""Beginnings of reasons that another attempt or another version can end."""


class Explanation(Resource):
    """Why a rollout is where it is.

    Fields:
        summary: one sentence.
        reason: of the condition that it follows, if any.
        meaning: of the reason.
        details: the condition's message, then lagging workers.
        remedies: what can be done, with commands.
    """

    name: str
    summary: str
    reason: str = ""
    meaning: str = ""
    details: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def explain(weights: WeightVersion, fleet: InferenceFleet | None, now: datetime) -> Explanation:
    """Why this rollout is where it is."""
    view = rollout_view(weights, now)
    if not view.observed:
        return Explanation(
            name=view.name,
            summary=(
                f"The operator has not seen generation {weights.metadata.generation} of "
                f"{view.name} yet."
            ),
            remedies=("check that the operator runs and follows this namespace",),
        )
    cause = _cause(weights, fleet)
    details = [cause.message] if cause and cause.message else []
    lagging = weights.status.laggards
    details += [
        f"{one.pod}: {one.reason}{f', {one.message}' if one.message else ''}" for one in lagging[:5]
    ]
    if len(lagging) > 5:
        details.append(
            f"{len(lagging) - 5} more lagging workers: rlfleet workers {view.name} -n {view.namespace}"
        )
    reason = cause.reason if cause else ""
    return Explanation(
        name=view.name,
        summary=_summary(view, cause),
        reason=reason,
        meaning=MEANINGS.get(reason, ""),
        details=tuple(details),
        remedies=tuple(r.format_map(view.model_dump()) for r in _remedies(reason)),
    )


def meaning_of(reason: str) -> Explanation | None:
    """The meaning of a reason; None for any other word."""
    if reason not in MEANINGS:
        return None
    places = {"name": "NAME", "fleet": "FLEET", "namespace": "NAMESPACE", "desired": "VERSION"}
    remedies = (r.format_map(places) for r in _remedies(reason))
    return Explanation(name=reason, summary=MEANINGS[reason], remedies=tuple(remedies))


def _cause(weights: WeightVersion, fleet: InferenceFleet | None) -> Condition | None:
    """The condition that says why: Stalled before all others, then what is not ready."""
    of_fleet = fleet.status.conditions if fleet else ()
    stalled = [
        c
        for c in (*weights.status.conditions, *of_fleet)
        if c.type == "Stalled" and c.status == "True"
    ]
    if stalled:
        return stalled[0]
    progressing, ready = weights.condition("Progressing"), weights.condition("Ready")
    if progressing is not None and progressing.reason == "Suspended":
        return progressing
    if ready is not None and ready.status == "True":
        return None
    return progressing if progressing and progressing.status == "True" else ready


def _summary(view: RolloutView, cause: Condition | None) -> str:
    what = f"version {view.desired} of {view.name}"
    if cause is None:
        return f"Nothing holds {what}: {view.workers} workers serve it."
    if cause.type == "Stalled":
        return f"{what[0].upper()}{what[1:]} is stalled: {cause.reason}. {_served(view)}"
    if cause.reason == "Suspended":
        return f"{what[0].upper()}{what[1:]} is suspended. {_served(view)}"
    return f"{what[0].upper()}{what[1:]} is on its way: {cause.reason}. {view.workers} workers serve it."


def _served(view: RolloutView) -> str:
    return (
        f"Version {view.applied} keeps serving." if view.applied else "No version is applied yet."
    )


def _remedies(reason: str) -> tuple[str, ...]:
    if reason in _REMEDIES:
        return _REMEDIES[reason]
    return _AGAIN if reason.startswith(_FILES) else ()
