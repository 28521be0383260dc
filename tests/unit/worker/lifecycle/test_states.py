"""Every transition of the state machine."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tests.support.contradictions import contradiction
from tests.support.refusals import refusal_from

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.states import CALLS, Event, LifecycleState, after
from fleet_worker.protocol import Phase, Reason

CLOSED = {Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING}
ALL = [
    LifecycleState(phase, admitted=admitted, loaded=loaded, idle=idle)
    for phase, admitted, loaded, idle in itertools.product(Phase, *3 * [(False, True)])
    if not (admitted and (idle or phase in CLOSED))
    and not (idle and phase not in (Phase.JOINING, Phase.LOADING, Phase.BROKEN))
]
STEPS = list(itertools.product(ALL, Event))
STARTING = LifecycleState(Phase.STARTING)
BROKEN = LifecycleState(Phase.BROKEN)
IDLE = LifecycleState(Phase.JOINING, idle=True)
IDLE_LOADING = LifecycleState(Phase.LOADING, idle=True)
FENCED_LOADING = LifecycleState(Phase.LOADING)
SERVING = LifecycleState(Phase.SERVING, admitted=True)
PAUSED = LifecycleState(Phase.PAUSED, admitted=True)
LOADED = LifecycleState(Phase.PAUSED, admitted=True, loaded=True)
LOADING = LifecycleState(Phase.LOADING, admitted=True)
JOINING = LifecycleState(Phase.JOINING)


def outcome(state: LifecycleState, event: Event) -> LifecycleState | None:
    try:
        return after(state, event)
    except Refusal:
        return None


def reachable() -> set[LifecycleState]:
    """Everything that a worker can come to."""
    found = {STARTING}
    fresh = set(found)
    while fresh:
        fresh = {
            then
            for state in fresh
            for event in Event
            if (then := outcome(state, event)) is not None
        } - found
        found |= fresh
    return found


def test_every_phase_is_reachable() -> None:
    assert {state.phase for state in reachable()} == set(Phase)


def test_the_latch_is_closed_in_every_closed_phase() -> None:
    for state in reachable():
        assert not (state.admitted and state.phase in CLOSED), state


def test_a_worker_that_serves_or_holds_requests_is_admitted() -> None:
    # An agent closes the latch just before it fences a serving worker. The table never makes such a state.
    for state in reachable():
        if state.phase in (Phase.SERVING, Phase.PAUSED):
            assert state.admitted, state


def test_only_an_admission_opens_the_latch() -> None:
    for state, event in STEPS:
        then = outcome(state, event)
        if then is not None and then.admitted and not state.admitted:
            assert event is Event.ADMIT, (state, event)


def test_only_recovery_and_drain_leave_broken() -> None:
    left = {
        event
        for state, event in STEPS
        if state.phase is Phase.BROKEN
        and (then := outcome(state, event)) is not None
        and then.phase is not Phase.BROKEN
    }

    assert left == {Event.RECOVERED, Event.DRAIN}


def test_no_event_leaves_draining() -> None:
    for event in Event:
        then = outcome(LifecycleState(Phase.DRAINING), event)
        assert then is None or then.phase is Phase.DRAINING


def test_a_broken_worker_refuses_every_caller_as_broken() -> None:
    for event in CALLS:
        if event in (Event.DRAIN, Event.FENCE):
            continue
        assert refusal_from(after, BROKEN, event).reason is Reason.BROKEN


def test_every_other_phase_can_drain() -> None:
    for state in ALL:
        assert after(state, Event.DRAIN) == LifecycleState(Phase.DRAINING)


def test_loaded_is_set_only_while_paused_or_loading() -> None:
    for state, event in STEPS:
        then = outcome(state, event)
        if then is not None and then.loaded:
            assert then.phase in (Phase.PAUSED, Phase.LOADING), (state, event)


TRANSITIONS = {
    "an engine that is up is closed": (STARTING, Event.READY, IDLE),
    "admission opens a joining worker": (IDLE, Event.ADMIT, SERVING),
    "a joining worker loads without a pause": (IDLE, Event.LOAD, IDLE_LOADING),
    "a joining worker is still joining after its load": (IDLE_LOADING, Event.LOADED, IDLE),
    "a paused worker is still paused after its load": (LOADING, Event.LOADED, LOADED),
    "a refused load leaves the old weights paused": (LOADING, Event.LOAD_REFUSED, PAUSED),
    "a refused second load does not forget the first": (
        replace(LOADING, loaded=True),
        Event.LOAD_REFUSED,
        LOADED,
    ),
    "a load that failed in the engine closes the latch": (LOADING, Event.LOAD_FAILED, BROKEN),
    "a recovered worker waits to be admitted": (BROKEN, Event.RECOVERED, IDLE),
    "an expired lease over untouched weights resumes": (PAUSED, Event.LEASE_EXPIRED, SERVING),
    "an expired lease over new weights closes the latch": (LOADED, Event.LEASE_EXPIRED, IDLE),
    "resume serves the new weights": (LOADED, Event.RESUME, SERVING),
    "a fence during a load closes the latch at once": (LOADING, Event.FENCE, FENCED_LOADING),
    "a worker that was fenced while it drained is joining, and not idle": (
        LifecycleState(Phase.PAUSING),
        Event.PAUSED,
        JOINING,
    ),
    "a worker that was fenced in a load still holds requests": (
        FENCED_LOADING,
        Event.LOADED,
        JOINING,
    ),
    "a fence that fails closes a paused worker": (LOADED, Event.NOT_IDLE, JOINING),
    "a fence that fails closes a serving worker": (SERVING, Event.NOT_IDLE, JOINING),
    "a fence that succeeds makes a closed worker idle": (JOINING, Event.FENCE, IDLE),
}


@pytest.mark.parametrize(("state", "event", "then"), TRANSITIONS.values(), ids=TRANSITIONS)
def test_a_transition_has_its_result(
    state: LifecycleState, event: Event, then: LifecycleState
) -> None:
    assert after(state, event) == then


@pytest.mark.parametrize(
    ("phase", "event"),
    [
        pytest.param(Phase.SERVING, Event.LOAD, id="serving workers do not load"),
        pytest.param(Phase.PAUSING, Event.LOAD, id="draining requests are not run over"),
        pytest.param(Phase.JOINING, Event.PAUSE, id="what is closed cannot be paused"),
        pytest.param(Phase.JOINING, Event.RESUME, id="joining workers need an admission"),
        pytest.param(Phase.PAUSED, Event.ADMIT, id="paused workers are resumed"),
        pytest.param(Phase.LOADING, Event.RESUME, id="a loading worker does not serve"),
        pytest.param(Phase.JOINING, Event.LOAD, id="weights do not change under live requests"),
        pytest.param(
            Phase.JOINING, Event.ADMIT, id="the latch of a worker that is not idle stays closed"
        ),
        pytest.param(Phase.STARTING, Event.ADMIT, id="nothing serves before the engine is up"),
    ],
)
def test_other_transitions_are_refused(phase: Phase, event: Event) -> None:
    state = LifecycleState(phase, admitted=phase not in CLOSED)
    assert refusal_from(after, state, event).reason is Reason.WRONG_PHASE


def test_only_events_that_end_all_requests_make_a_worker_idle() -> None:
    found = {
        event
        for state, event in STEPS
        if (then := outcome(state, event)) is not None and then.idle and not state.idle
    }

    assert found == {Event.READY, Event.FENCE, Event.LEASE_EXPIRED, Event.RECOVERED}


def test_an_idle_worker_is_closed() -> None:
    for state in reachable():
        assert not (state.idle and state.admitted), state


def test_after_a_failed_fence_a_closed_worker_neither_serves_nor_pauses() -> None:
    for state in ALL:
        then = outcome(state, Event.NOT_IDLE)
        if then is not None:
            closed = {Phase.JOINING, Phase.LOADING, Phase.BROKEN}
            assert then.phase in closed, state
            assert (then.admitted, then.idle) == (False, False), state


@pytest.mark.parametrize(
    ("state", "paused", "unfinished", "fits"),
    [
        (SERVING, False, 3, True),
        (SERVING, True, 3, False),
        (LifecycleState(Phase.SERVING), False, 0, False),
        (PAUSED, True, 3, True),
        (PAUSED, False, 0, False),
        (LifecycleState(Phase.PAUSED), True, 0, False),
        (LifecycleState(Phase.PAUSING, admitted=True), True, 0, False),
        (LOADING, True, 3, True),
        (LOADING, False, 0, False),
        (IDLE, True, 0, True),
        (IDLE, True, 1, False),
        (IDLE, False, 0, False),
        (JOINING, False, 1, True),
        (LifecycleState(Phase.JOINING, admitted=True), True, 0, False),
        (LifecycleState(Phase.BROKEN, admitted=True), True, 0, False),
        (LifecycleState(Phase.SERVING, admitted=True, idle=True), False, 0, False),
    ],
)
def test_a_contradiction_between_a_worker_and_its_engine_is_found(
    state: LifecycleState, paused: bool, unfinished: int, fits: bool
) -> None:
    found = contradiction(state, paused=paused, unfinished=unfinished)

    assert (found is None) is fits


def test_a_difference_that_a_running_call_will_repair_is_not_a_contradiction() -> None:
    fenced = LifecycleState(Phase.SERVING)

    assert contradiction(fenced, paused=False, unfinished=1) is not None
    assert contradiction(fenced, paused=False, unfinished=1, under_way=True) is None
