"""Compares the answers of one worker."""

from __future__ import annotations

from operator import attrgetter

from pydantic import BaseModel

from fleet_worker.protocol import WorkerState


def weights_of(state: WorkerState) -> tuple[str | None, ...]:
    """The name of the weights that a worker serves."""
    return state.version, state.run_id, state.digest


_AGEING = ("operation", "pause", "stage_failure", "load_failure", "adapter_failure")
"""Parts of a state that hold running times."""
_ageing = attrgetter(*_AGEING)
_lasting = attrgetter(
    *(
        WorkerState.model_fields.keys()
        - {"uptime_seconds", "requests_running", "requests_held", "sessions"}
        - {"earlier_stage_failures", "adapter_failures"}
        - set(_AGEING)
    )
)


def steady(state: WorkerState) -> tuple[object, ...]:
    """The part of an answer that an unchanged worker repeats."""
    parts = (*_ageing(state), *state.earlier_stage_failures, *state.adapter_failures)
    if any(parts):
        parts = tuple(part and _without_times(part) for part in parts)
    return (_lasting(state), bool(state.requests_running), bool(state.requests_held), parts)


def _without_times(part: BaseModel) -> dict[str, object]:
    return {name: v for name, v in vars(part).items() if not name.endswith("_seconds")}


def ages(state: WorkerState) -> bool:
    """Whether a value in it has an age or expires."""
    failures = (state.stage_failure, state.load_failure, state.adapter_failure)
    return (
        state.pause is not None
        or state.operation is not None
        or bool(state.earlier_stage_failures)
        or any(f is not None for f in failures)
    )
