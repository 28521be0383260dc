"""The signs that a worker's state must show after a call.

A worker that answers with success and does nothing would otherwise be called without an end. In case of
doubt the effect of a call with an answer counts as shown: the next decision plans the call again if it is
needed. A call without an answer has had an effect only if the state shows it.
"""

from __future__ import annotations

from typing import assert_never

from fleet_operator.core.actions import (
    Admit,
    Apply,
    CanaryPrompts,
    CompareFiles,
    CompareLora,
    Fence,
    Load,
    Pause,
    PutLora,
    RemoveLora,
    Resume,
    Stage,
    StageLora,
    WorkerCall,
)
from fleet_operator.core.identity import label
from fleet_operator.core.worker_calls import RENEW_BELOW_SECONDS
from fleet_operator.core.worker_failures import ROUNDING_SECONDS, is_about
from fleet_worker.protocol import AdapterState, Failure, Named, Phase, Staged, WorkerState


def missing_effect(call: WorkerCall, state: WorkerState) -> str:
    """Returns the effect of a call that an answer with success does not show; empty if it does."""
    return "" if _cannot_tell(call, state) else _missing(call, state)


def shows_effect(call: WorkerCall, state: WorkerState) -> bool:
    """Whether a state shows the effect of a call that got no answer."""
    return not _missing(call, state) and not _has_own_words(call, state)


def _cannot_tell(call: WorkerCall, state: WorkerState) -> bool:
    """Whether a state without the effect of a call proves nothing. A worker reports no stage while it is at other
    work.
    """
    elsewhere = state.operation is not None and state.operation.kind != "stage"
    return _has_own_words(call, state) or (isinstance(call, Stage) and elsewhere)


def _has_own_words(call: WorkerCall, state: WorkerState) -> bool:
    """Whether a newer release may have its own words for the effect. It has none for the latch."""
    return not isinstance(state.phase, Phase) and not isinstance(call, Fence | Admit)


def _missing(call: WorkerCall, state: WorkerState) -> str:
    match call:
        case CompareFiles() | CompareLora():
            missing = ""  # the answer itself is the result
        case PutLora() | StageLora() | RemoveLora():
            missing = _missing_adapter(call, state)
        case Stage() | Load() | Apply() | CanaryPrompts():
            missing = _missing_weights(call, state)
        case Pause():
            missing = _missing_pause(state)
        case Resume():
            missing = "it is still paused" if state.phase is Phase.PAUSED else ""
        case Admit():
            missing = "" if state.admitted else "its latch is closed"
        case Fence():
            missing = "its latch is open" if state.admitted else ""
        case _:
            assert_never(call)
    return missing


def is_reported(call: WorkerCall, state: WorkerState | None, *, within_seconds: float) -> bool:
    """Whether a worker's state reports the refusal of a call. The planners know it from there, and wait.

    `within_seconds`: since the call was sent. An older failure with these weights is one of an earlier call.
    """
    if state is None:
        return False
    known: tuple[Failure | None, ...]
    if isinstance(call, PutLora | StageLora):
        known = tuple(f for f in state.adapter_failures if f.name == call.adapter)
    else:
        known = (state.stage_failure, state.load_failure, *state.earlier_stage_failures)
    lately = (f for f in known if f and f.age_seconds <= within_seconds + ROUNDING_SECONDS)
    return any(is_about(f, call) for f in lately)


def _missing_weights(call: Stage | Load | Apply | CanaryPrompts, state: WorkerState) -> str:
    if isinstance(call, CanaryPrompts):
        reported = state.probe is not None and _same_run(state.probe, call)
        return "" if reported else f"it reports no canary prompts on {_named(call)}"
    loaded = _same_run(state, call) and call.digest in {None, state.digest}
    if isinstance(call, Stage):
        staged = loaded or _is(state.staged, call) or _stages(state, call)
        return "" if staged else f"{_named(call)} is not staged"
    return "" if loaded else f"{_named(call)} is not in its engine"


def _stages(state: WorkerState, call: Stage) -> bool:
    work = state.operation
    return work is not None and work.kind == "stage" and _same_run(work, call)


def _missing_pause(state: WorkerState) -> str:
    if state.phase is Phase.SERVING:
        return "it still serves"
    pause = state.pause
    if pause is not None and pause.lease_remaining_seconds < RENEW_BELOW_SECONDS:
        return "its pause was not prolonged"
    return ""


def _missing_adapter(call: PutLora | StageLora | RemoveLora, state: WorkerState) -> str:
    held = next((a for a in state.adapters if a.name == call.adapter), None)
    if isinstance(call, RemoveLora):
        there = held is not None and (held.version is not None or held.staged is not None)
        return f"it still has adapter {call.adapter}" if there else ""
    served = held is not None and held.version is not None and _is_served(held, call)
    staged = held is not None and isinstance(call, StageLora) and _is(held.staged, call)
    done = "staged" if isinstance(call, StageLora) else "served"
    what = f"{_named(call)} of adapter {call.adapter} is not {done}"
    return "" if served or staged else what


def _is_served(held: AdapterState, call: Named) -> bool:
    return _same_run(held, call) and call.digest in {None, held.digest}


def _is(staged: Staged | None, call: Named) -> bool:
    """Whether a worker holds the bytes of these weights."""
    if staged is None or not _same_run(staged, call):
        return False
    return call.digest in {None, staged.digest}


def _same_run(found: object, call: Named) -> bool:
    named = getattr(found, "version", None), getattr(found, "run_id", None)
    return named == (call.version, call.run_id)


def _named(call: WorkerCall) -> str:
    return f"version {label(call.version, call.run_id)}"
