"""Every transition of the state machine."""

from __future__ import annotations

import itertools

import pytest
from tests.support.contradictions import contradiction

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.states import CALLS, Event, Standing, after
from fleet_worker.protocol import Phase, Reason

CLOSED = {Phase.STARTING, Phase.JOINING, Phase.BROKEN, Phase.DRAINING}
ALL = [
    Standing(phase, admitted=admitted, loaded=loaded, at_rest=at_rest)
    for phase, admitted, loaded, at_rest in itertools.product(Phase, *3 * [(False, True)])
    if not (admitted and (at_rest or phase in CLOSED))
    and not (at_rest and phase not in (Phase.JOINING, Phase.LOADING, Phase.BROKEN))
]
STEPS = list(itertools.product(ALL, Event))


def outcome(standing: Standing, event: Event) -> Standing | None:
    try:
        return after(standing, event)
    except Refusal:
        return None


def reachable() -> set[Standing]:
    """Everything that a worker can come to."""
    found = {Standing(Phase.STARTING)}
    fresh = set(found)
    while fresh:
        fresh = {
            then
            for standing in fresh
            for event in Event
            if (then := outcome(standing, event)) is not None
        } - found
        found |= fresh
    return found


def test_every_phase_is_reachable() -> None:
    assert {standing.phase for standing in reachable()} == set(Phase)


def test_the_latch_is_closed_in_every_closed_phase() -> None:
    for standing in reachable():
        assert not (standing.admitted and standing.phase in CLOSED), standing


def test_a_worker_that_serves_or_holds_requests_is_admitted() -> None:
    # Between the closing of the latch and the fence that follows it, nothing else may happen to
    # serving; the table alone never makes such a standing.
    for standing in reachable():
        if standing.phase in (Phase.SERVING, Phase.PAUSED):
            assert standing.admitted, standing


def test_only_an_admission_opens_the_latch() -> None:
    for standing, event in STEPS:
        then = outcome(standing, event)
        if then is not None and then.admitted and not standing.admitted:
            assert event is Event.ADMIT, (standing, event)


def test_only_recovery_and_drain_leave_broken() -> None:
    left = {
        event
        for standing, event in STEPS
        if standing.phase is Phase.BROKEN
        and (then := outcome(standing, event)) is not None
        and then.phase is not Phase.BROKEN
    }

    assert left == {Event.RECOVERED, Event.DRAIN}


def test_no_event_leaves_draining() -> None:
    for event in Event:
        then = outcome(Standing(Phase.DRAINING), event)
        assert then is None or then.phase is Phase.DRAINING


def test_a_broken_worker_refuses_every_caller_as_broken() -> None:
    for event in CALLS:
        if event in (Event.DRAIN, Event.FENCE):
            continue
        with pytest.raises(Refusal) as refused:
            after(Standing(Phase.BROKEN), event)
        assert refused.value.reason is Reason.BROKEN


def test_every_other_phase_can_drain() -> None:
    for standing in ALL:
        assert after(standing, Event.DRAIN) == Standing(Phase.DRAINING)


def test_loaded_is_set_only_while_paused_or_loading() -> None:
    for standing, event in STEPS:
        then = outcome(standing, event)
        if then is not None and then.loaded:
            assert then.phase in (Phase.PAUSED, Phase.LOADING), (standing, event)


@pytest.mark.parametrize(
    ("standing", "event", "then"),
    [
        pytest.param(
            Standing(Phase.STARTING),
            Event.READY,
            Standing(Phase.JOINING, at_rest=True),
            id="an engine that is up is closed",
        ),
        pytest.param(
            Standing(Phase.JOINING, at_rest=True),
            Event.ADMIT,
            Standing(Phase.SERVING, admitted=True),
            id="admission opens a joining worker",
        ),
        pytest.param(
            Standing(Phase.JOINING, at_rest=True),
            Event.LOAD,
            Standing(Phase.LOADING, at_rest=True),
            id="a joining worker loads without a pause",
        ),
        pytest.param(
            Standing(Phase.LOADING, at_rest=True),
            Event.LOADED,
            Standing(Phase.JOINING, at_rest=True),
            id="a joining worker is still joining after its load",
        ),
        pytest.param(
            Standing(Phase.LOADING, admitted=True),
            Event.LOADED,
            Standing(Phase.PAUSED, admitted=True, loaded=True),
            id="a paused worker is still paused after its load",
        ),
        pytest.param(
            Standing(Phase.LOADING, admitted=True),
            Event.LOAD_REFUSED,
            Standing(Phase.PAUSED, admitted=True),
            id="a refused load leaves the old weights paused",
        ),
        pytest.param(
            Standing(Phase.LOADING, admitted=True, loaded=True),
            Event.LOAD_REFUSED,
            Standing(Phase.PAUSED, admitted=True, loaded=True),
            id="a refused second load does not forget the first",
        ),
        pytest.param(
            Standing(Phase.LOADING, admitted=True),
            Event.LOAD_FAILED,
            Standing(Phase.BROKEN),
            id="a load that failed inside the engine closes the latch",
        ),
        pytest.param(
            Standing(Phase.BROKEN),
            Event.RECOVERED,
            Standing(Phase.JOINING, at_rest=True),
            id="a recovered worker waits to be admitted",
        ),
        pytest.param(
            Standing(Phase.PAUSED, admitted=True),
            Event.LEASE_EXPIRED,
            Standing(Phase.SERVING, admitted=True),
            id="an expired lease over untouched weights resumes",
        ),
        pytest.param(
            Standing(Phase.PAUSED, admitted=True, loaded=True),
            Event.LEASE_EXPIRED,
            Standing(Phase.JOINING, at_rest=True),
            id="an expired lease over new weights closes the latch",
        ),
        pytest.param(
            Standing(Phase.PAUSED, admitted=True, loaded=True),
            Event.RESUME,
            Standing(Phase.SERVING, admitted=True),
            id="resume serves the new weights",
        ),
        pytest.param(
            Standing(Phase.LOADING, admitted=True),
            Event.FENCE,
            Standing(Phase.LOADING),
            id="a fence during a load closes the latch at once",
        ),
        pytest.param(
            Standing(Phase.PAUSING),
            Event.PAUSED,
            Standing(Phase.JOINING),
            id="a worker that was fenced while it drained is joining, and not at rest",
        ),
        pytest.param(
            Standing(Phase.LOADING),
            Event.LOADED,
            Standing(Phase.JOINING),
            id="a worker that was fenced in a load still holds what was paused",
        ),
        pytest.param(
            Standing(Phase.PAUSED, admitted=True, loaded=True),
            Event.NOT_AT_REST,
            Standing(Phase.JOINING),
            id="a fence that fails closes a paused worker",
        ),
        pytest.param(
            Standing(Phase.SERVING, admitted=True),
            Event.NOT_AT_REST,
            Standing(Phase.JOINING),
            id="a fence that fails closes a serving worker",
        ),
        pytest.param(
            Standing(Phase.JOINING),
            Event.FENCE,
            Standing(Phase.JOINING, at_rest=True),
            id="a fence that succeeds brings a closed worker to rest",
        ),
    ],
)
def test_a_transition_has_its_result(standing: Standing, event: Event, then: Standing) -> None:
    assert after(standing, event) == then


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
        pytest.param(Phase.JOINING, Event.ADMIT, id="an engine that is not at rest is not opened"),
        pytest.param(Phase.STARTING, Event.ADMIT, id="nothing serves before the engine is up"),
    ],
)
def test_other_transitions_are_refused(phase: Phase, event: Event) -> None:
    standing = Standing(phase, admitted=phase not in CLOSED)
    with pytest.raises(Refusal) as refused:
        after(standing, event)

    assert refused.value.reason is Reason.WRONG_PHASE


def test_only_events_that_end_all_requests_bring_a_worker_to_rest() -> None:
    found = {
        event
        for standing, event in STEPS
        if (then := outcome(standing, event)) is not None and then.at_rest and not standing.at_rest
    }

    assert found == {Event.READY, Event.FENCE, Event.LEASE_EXPIRED, Event.RECOVERED}


def test_a_worker_at_rest_is_closed() -> None:
    for standing in reachable():
        assert not (standing.at_rest and standing.admitted), standing


def test_after_a_failed_fence_a_closed_worker_neither_serves_nor_pauses() -> None:
    for standing in ALL:
        then = outcome(standing, Event.NOT_AT_REST)
        if then is not None:
            closed = {Phase.JOINING, Phase.LOADING, Phase.BROKEN}
            assert then.phase in closed, standing
            assert (then.admitted, then.at_rest) == (False, False), standing


@pytest.mark.parametrize(
    ("standing", "paused", "unfinished", "fits"),
    [
        (Standing(Phase.SERVING, admitted=True), False, 3, True),
        (Standing(Phase.SERVING, admitted=True), True, 3, False),
        (Standing(Phase.SERVING), False, 0, False),
        (Standing(Phase.PAUSED, admitted=True), True, 3, True),
        (Standing(Phase.PAUSED, admitted=True), False, 0, False),
        (Standing(Phase.PAUSED), True, 0, False),
        (Standing(Phase.PAUSING, admitted=True), True, 0, False),
        (Standing(Phase.LOADING, admitted=True), True, 3, True),
        (Standing(Phase.LOADING, admitted=True), False, 0, False),
        (Standing(Phase.JOINING, at_rest=True), True, 0, True),
        (Standing(Phase.JOINING, at_rest=True), True, 1, False),
        (Standing(Phase.JOINING, at_rest=True), False, 0, False),
        (Standing(Phase.JOINING), False, 1, True),
        (Standing(Phase.JOINING, admitted=True), True, 0, False),
        (Standing(Phase.BROKEN, admitted=True), True, 0, False),
        (Standing(Phase.SERVING, admitted=True, at_rest=True), False, 0, False),
    ],
)
def test_a_contradiction_between_a_worker_and_its_engine_is_found(
    standing: Standing,
    paused: bool,  # noqa: FBT001 - a column of the table
    unfinished: int,
    fits: bool,  # noqa: FBT001 - a column of the table
) -> None:
    found = contradiction(standing, paused=paused, unfinished=unfinished)

    assert (found is None) is fits


def test_a_difference_that_a_running_call_will_repair_is_no_contradiction() -> None:
    fenced = Standing(Phase.SERVING)

    assert contradiction(fenced, paused=False, unfinished=1) is not None
    assert contradiction(fenced, paused=False, unfinished=1, under_way=True) is None
