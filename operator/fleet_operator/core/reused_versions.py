"""Refuses a version of a run that now names other files, or may do so.

Replies, spans and audits name weights by run and version. So within one `runID` a version always
names the files that the fleet has seen first under it. A run that starts from 0 again needs another
`runID`. Where the fleet has dropped the pin of a version, `spec.digest` must say which files it means.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import file_digest, label, short_digest
from fleet_operator.core.pins import Pins
from fleet_operator.core.strategies.base import RolloutProblem
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.source import WeightSource

REMEDY = (
    "Publish these files under another version, or set another spec.runID if another run has made "
    "them; or restore the files"
)


def reuse_problem(
    wanted: Checkpoint, known: Iterable[Checkpoint], pins: Pins
) -> RolloutProblem | None:
    """Why the fleet refuses the desired weights: their version names other files, or may. None otherwise.

    `known`: the weights that the fleet serves or starts with, which count until they are pinned.
    """
    if pins.is_unread(wanted):
        return _unread(wanted, nameless=pins.unread.nameless)
    pin = pins.of(wanted)
    before = (pin.digest, pin.source, pin.commit) if pin is not None else _unpinned(wanted, known)
    if before is None:
        is_known = wanted.digest is not None or not pins.may_be_dropped(wanted)
        if is_known:
            return None
        return _digest_required(wanted, of_any_number=pins.has_lost_the_run_of(wanted))
    digest, source, commit = before
    name = label(wanted.version, wanted.run_id)
    if digest is not None and wanted.digest is not None:
        if wanted.digest == digest:
            return None
        conflict = (
            f"version {name} names files with digest {short_digest(digest)}, and spec.digest is "
            f"{short_digest(wanted.digest)}"
        )
    elif not _is_from(wanted.source, source, commit):
        with_digest = f" with digest {short_digest(digest)}" if digest is not None else ""
        conflict = f"version {name} names {source}{with_digest}, and spec.source is {wanted.source}"
    else:
        return None
    message = f"{conflict}. The fleet stays on the applied version. {REMEDY}."
    if digest is not None:
        message += (
            " If the files are the same, delete the WeightVersion and create it with "
            f"spec.digest: {digest}."
        )
    return RolloutProblem(reason=ConditionReason.VERSION_REUSED, message=message, halt=False)


def _unread(wanted: Checkpoint, *, nameless: bool) -> RolloutProblem:
    """`nameless`: the pin could be that of any version, so no other version is a remedy."""
    other = "" if nameless else ", or publish the files under another version"
    message = (
        f"version {label(wanted.version, wanted.run_id)} may name other files: another release of the "
        "operator has pinned it, and this one cannot read the pin. The fleet stays on the applied version. "
        f"Run the operator of that release or a later one{other}."
    )
    reason = ConditionReason.PIN_UNREADABLE
    return RolloutProblem(reason=reason, message=message, halt=False)


def _digest_required(wanted: Checkpoint, *, of_any_number: bool) -> RolloutProblem:
    """`of_any_number`: the fleet has no mark of this run any more, so only another run is a remedy."""
    other = "another spec.runID" if of_any_number else "a new version"
    message = (
        f"version {wanted.label} may have named other files before: the fleet remembers the digests of "
        "its newest versions only, and this one is not among them. The fleet stays on the applied version. "
        f"Publish these files under {other}. Or take this one back (rlfleet undo), and then set "
        "spec.version, spec.digest and, for an earlier version of the run, spec.rollbackTo in one patch "
        f"(rlfleet rollback {wanted.version} NAME --digest DIGEST). The digest is that of the files in "
        f"{wanted.source}."
    )
    return RolloutProblem(reason=ConditionReason.DIGEST_REQUIRED, message=message, halt=False)


def _unpinned(
    wanted: Checkpoint, known: Iterable[Checkpoint]
) -> tuple[str | None, WeightSource, str] | None:
    """Digest, source and commit of a version without a pin."""
    for weights in known:
        if (wanted.version, wanted.run_id) == (weights.version, weights.run_id):
            return file_digest(weights.digest), weights.source, ""
    return None


def _is_from(wanted: WeightSource, source: WeightSource, commit: str) -> bool:
    return wanted == source or (bool(commit) and wanted == source.at(commit))
