"""Refuses a version of a run that comes back as something else.

Two sets of weights under one name could not be told apart by whoever reads replies, spans or an
audit. So within one `runID` a version stands for one set of files, for ever: what the fleet has seen
under it first. A run that counts from 0 again names itself by another `runID`.
"""

from __future__ import annotations

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.source import WeightSource
from fleet_operator.core.identity import label, short
from fleet_operator.core.observed import FleetObserved, Target
from fleet_operator.core.pins import Pins
from fleet_operator.core.step import Problem

REMEDY = (
    "Publish these files under another version, or set another spec.runID if another run has made "
    "them; or restore the files"
)


def reuse_problem(wanted: Target, observed: FleetObserved, pins: Pins) -> Problem | None:
    """Why what a WeightVersion asks for is not what its version stands for, if it is not."""
    pin = pins.of(wanted)
    before = (
        (pin.digest, pin.source, pin.commit) if pin is not None else _unpinned(wanted, observed)
    )
    if before is None:
        return None
    digest, source, commit = before
    name = label(wanted.version, wanted.run_id)
    if digest is not None and wanted.digest is not None:
        if wanted.digest == digest:
            return None
        told = (
            f"version {name} stands for files with digest {short(digest)}, and spec.digest names "
            f"{short(wanted.digest)}"
        )
    elif not _is_from(wanted.source, source, commit):
        told = (
            f"version {name} stands for {source} with digest {short(digest)}, and spec.source names "
            f"{wanted.source}"
        )
    else:
        return None
    message = f"{told}. What is applied keeps serving. {REMEDY}."
    if digest is not None:
        message += (
            " If the files are the same, delete the WeightVersion and create it with "
            f"spec.digest: {digest}."
        )
    return Problem(reason=ConditionReason.VERSION_REUSED, message=message, halt=False)


def _unpinned(
    wanted: Target, observed: FleetObserved
) -> tuple[str | None, WeightSource, str] | None:
    """What a version stood for before workers reported digests."""
    model, recorded = observed.spec.model, observed.status.applied
    if (wanted.version, wanted.run_id) == (model.version, None):
        return None, model.source, ""
    if recorded and (wanted.version, wanted.run_id) == (recorded.version, recorded.run_id):
        return recorded.digest, recorded.source, ""
    return None


def _is_from(wanted: WeightSource, source: WeightSource, commit: str) -> bool:
    if wanted == source:
        return True
    repository, before = wanted.hugging_face, source.hugging_face
    same = repository is not None and before is not None and repository.repo == before.repo
    return same and bool(commit) and wanted.revision == commit
