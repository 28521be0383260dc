"""A WeightVersion as flat figures, for W&B and TensorBoard."""

from __future__ import annotations

from datetime import datetime

from rlfleet.deltas.written import Written
from rlfleet.resources import WeightVersion
from rlfleet.rollout import message_of
from rlfleet_resources.source import number_of

PREFIX = "rlfleet/"


def metrics(
    seen: WeightVersion,
    *,
    now: datetime,
    trained_version: str | int | None = None,
    written: Written | None = None,
) -> dict[str, float]:
    """Figures by name. Those that are not known are left out.

    Args:
        seen: A look at the object.
        now: With a zone. The age compares it with a clock of the cluster.
        trained_version: The newest weights that the trainer has; the desired version by default.
        written: The version that this process wrote last.

    Returns:
        `rlfleet/{stage,pause,load,resume,total}_seconds` and `max_worker_pause_seconds` of the last
        rollout, and what it cost: `lost_worker_seconds` of generation, and `held_requests`. `workers`, `workers_applied`, `workers_failed`, `superseded_versions`,
        `min_changed_share`. `unchanged`, 1 while `WeightsUnchanged` is true, else 0. `applied_age_seconds`, since all workers held the applied weights.
        `applied_version` and `lag_versions`, where versions are numbers (`43`, `step_43`). No lag between
        two runs, since each counts for itself. `written_bytes`, `written_seconds` and `changed_share` of the
        version that was written last.
    """
    status = seen.status
    found: dict[str, float | None] = dict(status.timings.model_dump())
    found |= {
        "workers": status.workers.total,
        "workers_applied": status.workers.applied,
        "workers_failed": status.workers.failed,
        "superseded_versions": status.superseded_versions,
        "min_changed_share": status.effect.min_changed_share if status.effect else None,
        "unchanged": bool(message_of(seen, "WeightsUnchanged")),
    }
    if status.applied is not None:
        if status.applied.applied_at is not None:
            found["applied_age_seconds"] = (now - status.applied.applied_at).total_seconds()
        found["applied_version"] = number_of(status.applied.version)
        newest = seen.spec.version if trained_version is None else str(trained_version)
        found["lag_versions"] = lag_of(seen, newest)
    if written is not None:
        found["written_bytes"] = written.written_bytes
        found["written_seconds"] = written.seconds
        found["changed_share"] = written.changed_share
    return {PREFIX + name: float(value) for name, value in found.items() if value is not None}


def lag_of(seen: WeightVersion, newest: str) -> int | None:
    """Versions from the applied one to `newest`, which is of the desired run.

    None if one of them is not a number, or if the applied one is of another run.
    """
    applied = seen.status.applied
    if applied is None or applied.run_id != seen.spec.run_id:
        return None
    last, first = number_of(newest), number_of(applied.version)
    return None if last is None or first is None else last - first
