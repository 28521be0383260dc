"""Every transition of the state machine."""

from __future__ import annotations

import itertools

import pytest
from tests.support.contradictions import contradiction

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


def outcome(state: LifecycleState, event: Event) -> LifecycleState | None:
    try:
        return after(state, event)
    except Refusal:
        return None


def reachable() -> set[LifecycleState]:
    """Everything that a worker can come to."""
    found = {LifecycleState(Phase.STARTING)}
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
        with pytest.raises(Refusal) as refused:
            after(LifecycleState(Phase.BROKEN), event)
        assert refused.value.reason is Reason.BROKEN


def test_every_other_phase_can_drain() -> None:
    for state in ALL:
        assert after(state, Event.DRAIN) == LifecycleState(Phase.DRAINING)


def test_loaded_is_set_only_while_paused_or_loading() -> None:
    for state, event in STEPS:
        then = outcome(state, event)
        if then is not None and then.loaded:
            assert then.phase in (Phase.PAUSED, Phase.LOADING), (state, event)


@pytest.mark.parametrize(
    ("state", "event", "then"),
    [
        pytest.param(
            LifecycleState(Phase.STARTING),
            Event.READY,
            LifecycleState(Phase.JOINING, idle=True),
            id="an engine that is up is closed",
        ),
        pytest.param(
            LifecycleState(Phase.JOINING, idle=True),
            Event.ADMIT,
            LifecycleState(Phase.SERVING, admitted=True),
            id="admission opens a joining worker",
        ),
        pytest.param(
            LifecycleState(Phase.JOINING, idle=True),
            Event.LOAD,
            LifecycleState(Phase.LOADING, idle=True),
            id="a joining worker loads without a pause",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, idle=True),
            Event.LOADED,
            LifecycleState(Phase.JOINING, idle=True),
            id="a joining worker is still joining after its load",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, admitted=True),
            Event.LOADED,
            LifecycleState(Phase.PAUSED, admitted=True, loaded=True),
            id="a paused worker is still paused after its load",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, admitted=True),
            Event.LOAD_REFUSED,
            LifecycleState(Phase.PAUSED, admitted=True),
            id="a refused load leaves the old weights paused",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, admitted=True, loaded=True),
            Event.LOAD_REFUSED,
            LifecycleState(Phase.PAUSED, admitted=True, loaded=True),
            id="a refused second load does not forget the first",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, admitted=True),
            Event.LOAD_FAILED,
            LifecycleState(Phase.BROKEN),
            id="a load that failed inside the engine closes the latch",
        ),
        pytest.param(
            LifecycleState(Phase.BROKEN),
            Event.RECOVERED,
            LifecycleState(Phase.JOINING, idle=True),
            id="a recovered worker waits to be admitted",
        ),
        pytest.param(
            LifecycleState(Phase.PAUSED, admitted=True),
            Event.LEASE_EXPIRED,
            LifecycleState(Phase.SERVING, admitted=True),
            id="an expired lease over untouched weights resumes",
        ),
        pytest.param(
            LifecycleState(Phase.PAUSED, admitted=True, loaded=True),
            Event.LEASE_EXPIRED,
            LifecycleState(Phase.JOINING, idle=True),
            id="an expired lease over new weights closes the latch",
        ),
        pytest.param(
            LifecycleState(Phase.PAUSED, admitted=True, loaded=True),
            Event.RESUME,
            LifecycleState(Phase.SERVING, admitted=True),
            id="resume serves the new weights",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING, admitted=True),
            Event.FENCE,
            LifecycleState(Phase.LOADING),
            id="a fence during a load closes the latch at once",
        ),
        pytest.param(
            LifecycleState(Phase.PAUSING),
            Event.PAUSED,
            LifecycleState(Phase.JOINING),
            id="a worker that was fenced while it drained is joining, and not idle",
        ),
        pytest.param(
            LifecycleState(Phase.LOADING),
            Event.LOADED,
            LifecycleState(Phase.JOINING),
            id="a worker that was fenced in a load still holds what was paused",
        ),
        pytest.param(
            LifecycleState(Phase.PAUSED, admitted=True, loaded=True),
            Event.NOT_IDLE,
            LifecycleState(Phase.JOINING),
            id="a fence that fails closes a paused worker",
        ),
        pytest.param(
            LifecycleState(Phase.SERVING, admitted=True),
            Event.NOT_IDLE,
            LifecycleState(Phase.JOINING),
            id="a fence that fails closes a serving worker",
        ),
        pytest.param(
            LifecycleState(Phase.JOINING),
            Event.FENCE,
            LifecycleState(Phase.JOINING, idle=True),
            id="a fence that succeeds makes a closed worker idle",
        ),
    ],
)
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
    with pytest.raises(Refusal) as refused:
        after(state, event)

    assert refused.value.reason is Reason.WRONG_PHASE


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
        (LifecycleState(Phase.SERVING, admitted=True), False, 3, True),
        (LifecycleState(Phase.SERVING, admitted=True), True, 3, False),
        (LifecycleState(Phase.SERVING), False, 0, False),
        (LifecycleState(Phase.PAUSED, admitted=True), True, 3, True),
        (LifecycleState(Phase.PAUSED, admitted=True), False, 0, False),
        (LifecycleState(Phase.PAUSED), True, 0, False),
        (LifecycleState(Phase.PAUSING, admitted=True), True, 0, False),
        (LifecycleState(Phase.LOADING, admitted=True), True, 3, True),
        (LifecycleState(Phase.LOADING, admitted=True), False, 0, False),
        (LifecycleState(Phase.JOINING, idle=True), True, 0, True),
        (LifecycleState(Phase.JOINING, idle=True), True, 1, False),
        (LifecycleState(Phase.JOINING, idle=True), False, 0, False),
        (LifecycleState(Phase.JOINING), False, 1, True),
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
