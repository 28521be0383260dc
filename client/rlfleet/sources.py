"""Which files a requested version names, and the patches that ask for it: pure.

A patch always names version, run and source together, as they were decided from one look at the object.
So another writer that changes one of them at the same moment cannot put a label on other files.

A path without `{version}` replaces the object's template, `…/step_{version}`. The annotation
`rlfleet.dev/source-template` keeps it, so that a later request can restore it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlfleet.arguments import check, check_fleet
from rlfleet.errors import NotFound, Refused
from rlfleet.resources import WeightVersion
from rlfleet_resources.fleet_status import AppliedWeights, PinnedWeights
from rlfleet_resources.names import ANNOTATION_TRACEPARENT
from rlfleet_resources.source import WeightSource

Label = tuple[str, str | None]
"""Version and run."""
TEMPLATE = "rlfleet.dev/source-template"
"""Annotation of a WeightVersion: the source with `{version}` that a source without it has replaced."""
_MOST_NAMED = 10
_ENDED = {"Applied", "Comparing"}
"""Phases in which every worker has loaded the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A version to ask for. The fields are arguments of `Weights.publish`.

    Errors: Refused with `Invalid`.
    """

    version: str
    path: str | None = None
    digest: str | None = None
    run_id: str | None = None
    same_files: bool = False
    create_for: str | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        check(
            self.version,
            path=self.path,
            digest=self.digest,
            run_id=self.run_id,
            traceparent=self.traceparent,
        )


def publication(seen: WeightVersion, asked: Publication) -> dict[str, Any]:
    """The merge patch that asks for a version.

    It replaces or removes the digest of the version before, which names other files.

    Errors: Refused with `SourceFixed`, if the version would name the files of another one; with `Invalid`
    for the object of another fleet.
    """
    spec = seen.spec
    check_fleet(asked.version, asked.create_for, spec.fleet_ref.name)
    run_id = spec.run_id if asked.run_id is None else asked.run_id
    label = (asked.version, run_id)
    if asked.path is not None:
        source = _given(seen, label, asked.path)
    elif spec.source.is_template or asked.same_files or label == label_of(seen):
        source = spec.source
    else:
        raise _fixed(seen, label)
    kept = spec.digest if label == label_of(seen) else None
    digest = kept if asked.digest is None else asked.digest
    named = {"version": asked.version, "runID": run_id, "digest": digest}
    return _patch(seen, named, source, asked.traceparent)


def place_of(seen: WeightVersion | None, asked: Publication) -> tuple[str, str | None]:
    """The directory and the run of a version whose files are still to be written.

    `seen`: None if the object does not exist yet. Errors: as `publication`; Refused with `Invalid` if no
    directory is named.
    """
    if seen is None:
        path, run_id = asked.path, asked.run_id
    else:
        spec = publication(seen, asked)["spec"]
        source = WeightSource.model_validate(spec["source"]).resolve(asked.version)
        path, run_id = asked.path or source.path, spec["runID"]
    if path is None:
        raise Refused(
            asked.version,
            "Invalid",
            "the object names no directory to write the version to; give one with path=",
        )
    return _without_slash(path), run_id


def may_be_rewritten(seen: WeightVersion, asked: dict[str, Any]) -> bool:
    """Whether only the operator can tell if a published version still has its files.

    It has the version of the patch already, and workers have served it, so nothing would make the operator
    look. A first rollout that continues reads the files anyway, and would begin again. A digest says which
    files are meant.

    `asked`: the spec of the patch.
    """
    status, label = seen.status, label_of(seen)
    ended = status.has_reached(*label) or (status.is_about(*label) and status.phase in _ENDED)
    return ended and label == (asked["version"], asked["runID"]) and asked["digest"] is None


def rollback(
    seen: WeightVersion,
    label: Label,
    path: str | None,
    pins: Iterable[PinnedWeights],
    *,
    digest: str | None = None,
) -> list[dict[str, Any]]:
    """The merge patches that go back to a version, in order; none if it is desired.

    A change of `rollbackTo` to the version permits one step back. So a `rollbackTo` that names the
    version already is removed first.

    Args:
        seen: The object.
        label: The version and its run.
        path: Where the version is; None for the place that the fleet has recorded.
        pins: The files that versions name, by the status of the fleet, newest first.
        digest: What the fleet requires for a version whose own digest it has dropped.

    Errors: NotFound, without a path, for a version that the fleet has never had. For the desired version:
    Refused with `VersionReused` for another path, and with `Invalid` for another digest.
    """
    version, run_id = label
    if label == label_of(seen):
        _check_same_files(seen, path)
        if digest in {None, seen.spec.digest}:
            return []
        raise Refused(
            version,
            "Invalid",
            f"version {in_words(label)} is desired already, and its spec.digest cannot change; take it "
            "back with undo, and then go back to it with the digest",
        )
    source = _recorded(seen, label, tuple(pins)) if path is None else _given(seen, label, path)
    spec = {"version": version, "runID": run_id, "rollbackTo": version, "digest": digest}
    back = _patch(seen, spec, source, None)
    first = {"spec": {"rollbackTo": None}}
    return [first, back] if seen.spec.rollback_to == version else [back]


def before(seen: WeightVersion) -> Label:
    """The label before the desired one: that which is applied still, else the last one of the run.

    Errors: NotFound.
    """
    desired, applied = label_of(seen), seen.status.applied
    if applied is not None and (applied.version, applied.run_id) != desired:
        return applied.version, applied.run_id
    for entry in seen.status.history:
        if entry.result == "Applied" and entry.run_id == desired[1] and entry.version != desired[0]:
            return entry.version, entry.run_id
    name, namespace = seen.metadata.name, seen.metadata.namespace
    raise NotFound(
        f"the history of {name!r} has no version of this run that was applied before "
        f"{seen.spec.version}; name one: rlfleet rollback VERSION {name} -n {namespace}"
    )


def first(asked: Publication) -> dict[str, Any]:
    """The spec of a new object."""
    fields = {"version": asked.version, "runID": asked.run_id, "digest": asked.digest}
    source = {"source": {"path": _without_slash(asked.path)}} if asked.path is not None else {}
    return {name: value for name, value in fields.items() if value is not None} | source


def label_of(seen: WeightVersion) -> Label:
    """The desired version and its run."""
    return seen.spec.version, seen.spec.run_id


def in_words(label: Label) -> str:
    """`43`, `43 of run r`."""
    version, run_id = label
    return version if run_id is None else f"{version} of run {run_id}"


def _patch(
    seen: WeightVersion, spec: dict[str, Any], source: WeightSource, traceparent: str | None
) -> dict[str, Any]:
    """A merge patch. The traceparent of an older version is removed."""
    annotations: dict[str, str | None] = {ANNOTATION_TRACEPARENT: traceparent}
    kept = None if source.is_template else template_of(seen)
    template = None if kept is None else kept.model_dump_json(by_alias=True, exclude_none=True)
    if template != seen.metadata.annotations.get(TEMPLATE):
        annotations[TEMPLATE] = template
    named = source.model_dump(by_alias=True)
    return {"metadata": {"annotations": annotations}, "spec": spec | {"source": named}}


def _given(seen: WeightVersion, label: Label, path: str) -> WeightSource:
    """The source for a path: the present one or the template, if it names the same directory."""
    source, present = WeightSource(path=_without_slash(path)), seen.spec.source
    if label == label_of(seen) and present.resolve(label[0]) == source:
        return present  # the API server permits no other one for this label
    return _templated(seen, label[0], source)


def _templated(seen: WeightVersion, version: str, source: WeightSource) -> WeightSource:
    template = template_of(seen)
    return template if template is not None and template.resolve(version) == source else source


def template_of(seen: WeightVersion) -> WeightSource | None:
    """The object's template, also if a source without one has replaced it."""
    if seen.spec.source.is_template:
        return seen.spec.source
    try:
        kept = WeightSource.model_validate_json(seen.metadata.annotations.get(TEMPLATE, ""))
    except ValidationError:
        return None
    return kept if kept.is_template else None


def _recorded(seen: WeightVersion, label: Label, pins: tuple[PinnedWeights, ...]) -> WeightSource:
    """Where a version of the past is. Errors: NotFound."""
    version, _ = label
    applied = seen.status.applied
    known: list[PinnedWeights | AppliedWeights] = [*pins, *([applied] if applied else [])]
    for one in known:
        if (one.version, one.run_id) == label and one.source is not None:
            return _templated(seen, version, one.source)
    had = [
        *((one.version, one.run_id) for one in known),
        *((one.version, one.run_id) for one in seen.status.history if one.result == "Applied"),
    ]
    template = template_of(seen)
    if label in had and template is not None:
        return template
    raise _never_had(seen, label, [version for version, run_id in had if run_id == label[1]])


def _check_same_files(seen: WeightVersion, path: str | None) -> None:
    present = seen.spec.source.resolve(seen.spec.version)
    if path is None or present == WeightSource(path=_without_slash(path)):
        return
    raise Refused(
        seen.spec.version,
        "VersionReused",
        f"{seen.metadata.name!r} requests this version already, from {present}, and a version keeps its "
        "files; publish other files as another version",
    )


def _fixed(seen: WeightVersion, label: Label) -> Refused:
    source, template = seen.spec.source, template_of(seen)
    hint = template.resolve(label[0]).path if template is not None else None
    remedy = f"give its directory with path= or --path{f' {hint}' if hint else ''}"
    if source.key().revision:
        remedy = f"write {{version}} as its revision, or {remedy}"
    return Refused(
        label[0],
        "SourceFixed",
        f"the source of {seen.metadata.name!r} is {source}, without {{version}}, so {in_words(label)} "
        f"would name the files of {in_words(label_of(seen))}; {remedy}, or say with same_files=True or "
        "--same-files that they are meant",
    )


def _never_had(seen: WeightVersion, label: Label, had: list[str]) -> NotFound:
    versions = list(dict.fromkeys(had))
    more = len(versions) - _MOST_NAMED
    named = ", ".join(versions[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return NotFound(
        f"fleet {seen.spec.fleet_ref.name!r} has no record of version {in_words(label)}; "
        f"it has: {named or 'none of this run'}. For an older one give its directory with path= or --path"
    )


def _without_slash(path: str) -> str:
    """The path without a slash at its end, which shells add to names of directories."""
    return path.rstrip("/") or path
