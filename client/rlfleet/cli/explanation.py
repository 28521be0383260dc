"""Explain what blocks a rollout or a fleet, and the remedy: pure, read off the objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches

from rlfleet.cli.causes import not_said, remedies_of
from rlfleet.cli.checks import Check
from rlfleet.cli.diagnosis import is_wrong
from rlfleet.cli.view import FleetView, RolloutView, attention, fleet_view, rollout_view
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.words import plural, seconds
from rlfleet_resources.base import Resource
from rlfleet_resources.conditions import Condition
from rlfleet_resources.fleet_status import Laggard
from rlfleet_resources.reasons import ConditionReason, LaggardReason, Severity

_MOST_LAGGING = 5
_STARTS = frozenset(one for one in ConditionReason if one.severity is Severity.STARTS)
_WARNINGS = {
    "RouterAvailable": "The router is not available",
    "Stale": "Weights are too old",
    "WeightsUnchanged": "A warning",
    "Remarks": "A remark",
}
"""Conditions that block nothing, in words."""


class Explanation(Resource):
    """Why a rollout or a fleet is where it is.

    Fields:
        summary: one sentence.
        reason: of the condition that it follows, if any.
        meaning: of the reason.
        details: the condition's message, then lagging workers.
        causes: what the checks of `rlfleet doctor` find wrong, beyond the details.
        remedies: what can be done, with commands.
    """

    name: str
    summary: str
    reason: str = ""
    meaning: str = ""
    details: tuple[str, ...] = ()
    causes: tuple[Check, ...] = ()
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
            remedies=(
                f"See if an operator runs and follows this namespace: `rlfleet doctor -n {view.namespace}`.",
            ),
        )
    own = _cause(weights.status.conditions)
    of_fleet = _stalled(fleet.status.conditions) if fleet else None
    if of_fleet is not None and (own is None or own.type != "Stalled"):
        summary = f"Fleet {view.fleet} is stalled: {of_fleet.reason}. {_serving(view)}"
        cause: Condition | None = of_fleet
    else:
        cause = own
        summary = _summary(view, cause)
    remarks = weights.condition("Remarks")
    warnings = [*attention(weights), *(attention(fleet) if fleet else ())]
    warnings += [remarks] if remarks is not None and remarks.status == "True" else []
    names = {
        "NAME": view.name,
        "FLEET": view.fleet,
        "NAMESPACE": view.namespace,
        "VERSION": view.desired,
    }
    return _explanation(view.name, summary, cause, warnings, weights.status.laggards, names)


def explain_fleet(fleet: InferenceFleet, now: datetime) -> Explanation:
    """Why a fleet without a WeightVersion is where it is."""
    view = fleet_view(fleet, [], now)
    cause = _cause(fleet.status.conditions)
    names = {"FLEET": view.name, "NAMESPACE": view.namespace}
    summary, lagging = _summary_of_fleet(view, cause), fleet.status.laggards
    return _explanation(view.name, summary, cause, attention(fleet), lagging, names)


def unattended(found: Explanation, fleet: InferenceFleet, problem: str) -> Explanation:
    """The explanation for a fleet that no operator drives. `problem`: why none does."""
    namespace, name = fleet.metadata.namespace, fleet.metadata.name
    where = fleet.status.operator.partition("/")[0]
    return Explanation(
        name=found.name,
        summary=f"No operator drives fleet {name}: {problem}.",
        details=("What it reported last:", found.summary, *found.details),
        remedies=(
            f"Look at its pods and its Lease: `kubectl -n {where} get pods,leases`.",
            f"See what is wrong with it: `rlfleet doctor -n {namespace}`.",
            "If a pod leads, the clock of this machine differs from the cluster's.",
            "Until then the workers serve what they have, and pauses end by themselves.",
        ),
    )


_REASONS = {one.lower(): one for one in (*LaggardReason, *ConditionReason)}
_LINK = re.compile(r" \(\[[^]]+\]\([^)]+\)\)|\[([^]]+)\]\([^)]+\)")
"""A link of a page: in parentheses, or with a text."""


def meaning_of(reason: str) -> Explanation | None:
    """The meaning of a reason of a condition or of a lagging worker; None for any other word.

    Upper and lower case are the same.
    """
    known = _REASONS.get(reason.lower())
    if known is None:
        return None
    remedies = tuple(_LINK.sub(lambda link: link[1] or "", one) for one in known.advice)
    return Explanation(name=known, summary=known.meaning, remedies=remedies)


def similar_reasons(word: str) -> list[str]:
    """Reasons that are spelt like a word, the nearest first."""
    return [_REASONS[one] for one in get_close_matches(word.lower(), _REASONS, n=3, cutoff=0.75)]


def _explanation(
    name: str,
    summary: str,
    cause: Condition | None,
    warnings: Sequence[Condition],
    lagging: Sequence[Laggard],
    names: dict[str, str],
) -> Explanation:
    """The parts together. `names`: of the placeholders of remedies.

    The first warning takes the place of a missing cause. `Stalled` and what keeps the fleet from being
    available are causes already.
    """
    others = [c for c in warnings if c.type in _WARNINGS]
    if cause is None and others:
        cause = others.pop(0)
        summary = f"{summary} {_warning(cause)}"
    details = [cause.message] if cause and cause.message else []
    details += [f"{_warning(one)} {one.message}" for one in others]
    details += _lagging(lagging[:_MOST_LAGGING], details)
    if (more := len(lagging) - _MOST_LAGGING) > 0:
        details.append(
            f"{plural(more, 'more lagging worker')}: rlfleet workers {name} -n {names['NAMESPACE']}"
        )
    known = meaning_of(cause.reason) if cause else None
    return Explanation(
        name=name,
        summary=summary,
        reason=cause.reason if cause else "",
        meaning=known.summary if known else "",
        details=tuple(details),
        remedies=tuple(_filled(remedy, names) for remedy in (known.remedies if known else ())),
    )


def with_checks(found: Explanation, checks: Iterable[Check], namespace: str) -> Explanation:
    """The explanation with the causes that checks have found, and the remedy of each.

    Waiting does not help workers that cannot start: the causes take its place.
    """
    wrong = [one for one in checks if is_wrong(one)]
    said = " ".join(found.details)
    causes = not_said(wrong, said)
    words = " ".join(one.message for one in causes)
    known = (one.remedy for one in wrong if one not in causes)
    own = list(remedies_of(said, namespace, words))
    specific = tuple(dict.fromkeys([*own, *(known if not own else ())]))
    general = () if found.reason in _STARTS and (specific or causes) else found.remedies
    return found.model_copy(update={"causes": causes, "remedies": (*specific, *general)})


def _lagging(lagging: Sequence[Laggard], said: Sequence[str]) -> list[str]:
    """Workers that lag for one reason in one line, without a message that another line has."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in lagging:
        message = "" if any(one.message in line for line in said) else one.message
        alike.setdefault((one.reason, message), []).append(one.pod)
    return [
        f"{', '.join(pods)}: {reason}{f', {message}' if message else ''}"
        for (reason, message), pods in alike.items()
    ]


def _filled(remedy: str, names: dict[str, str]) -> str:
    """A remedy with the names of these objects, in its commands only."""
    words = "|".join(names)
    return re.sub(
        r"`[^`]*`",
        lambda code: re.sub(rf"\b({words})\b", lambda word: names[word[0]], code[0]),
        remedy,
    )


def _stalled(conditions: Iterable[Condition]) -> Condition | None:
    return next((c for c in conditions if c.type == "Stalled" and c.status == "True"), None)


def _warning(condition: Condition) -> str:
    return f"{_WARNINGS[condition.type]}: {condition.reason}."


def _cause(conditions: Iterable[Condition]) -> Condition | None:
    """The condition that says why: Stalled before all others, then what is not ready."""
    found = {str(c.type): c for c in conditions}
    if (stalled := _stalled(found.values())) is not None:
        return stalled
    progressing, ready = found.get("Progressing"), found.get("Ready")
    if progressing is not None and progressing.reason == "Suspended":
        return progressing
    if ready is not None and ready.status == "True":
        return None
    if ready is not None and ready.reason == "NoWorkers":
        return ready
    return progressing if progressing and progressing.status == "True" else ready


def _summary(view: RolloutView, cause: Condition | None) -> str:
    what = f"version {view.desired} of {view.name}"
    if cause is None:
        return f"Nothing blocks {what}: {_workers_serve(view)} it."
    if cause.type == "Stalled":
        return f"{what[0].upper()}{what[1:]} is stalled: {cause.reason}. {_served(view)}"
    if cause.reason == "Suspended":
        return f"{what[0].upper()}{what[1:]} is suspended. {_served(view)}"
    state = "is on its way" if cause.type == "Progressing" else "waits"
    lasts = f" for {seconds(view.phase_seconds)}" if cause.reason == view.phase else ""
    return f"{what[0].upper()}{what[1:]} {state}: {cause.reason}{lasts}. {_workers_serve(view)} it."


def _summary_of_fleet(view: FleetView, cause: Condition | None) -> str:
    versions = [f"{plural(v.workers, 'worker')} with version {v.version}" for v in view.versions]
    served = f"It has {', '.join(versions)}." if versions else "It serves no version."
    if cause is None:
        return f"Nothing blocks fleet {view.name}. {served}"
    state = "is stalled" if cause.type == "Stalled" else "is not ready"
    return f"Fleet {view.name} {state}: {cause.reason}. {served}"


def _served(view: RolloutView) -> str:
    return (
        f"Version {view.applied} keeps serving." if view.applied else "No version is applied yet."
    )


def _serving(view: RolloutView) -> str:
    return f"{_workers_serve(view)} version {view.desired} of {view.name}."


def _workers_serve(view: RolloutView) -> str:
    count = view.workers or "0"
    return f"{count} {'worker serves' if count.rpartition('/')[2] == '1' else 'workers serve'}"
