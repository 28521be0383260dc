"""The calls of one process: what it has not followed, and when a call may be repeated."""

from __future__ import annotations

import pytest
from tests.support.builders import call_for, make_worker, work

from fleet_operator.core.work import Outcome
from fleet_operator.ports import WorkerAnswer
from fleet_operator.runtime.attempts import (
    FIRST_SECONDS,
    FORGOTTEN_SECONDS,
    LASTS_SECONDS,
    LONGEST_SECONDS,
    REPORTED_SECONDS,
)
from fleet_operator.runtime.call_record import CallRecord
from fleet_worker.protocol import Reason, WorkerState

SERVING, JOINING = make_worker().serving("1"), make_worker().joining("1")
SILENT = WorkerAnswer(silent=True, message="connection reset")


def state_of(builder: object) -> WorkerState:
    found: WorkerState = builder.state()
    return found


def answer(builder: object, reason: Reason | None = None) -> WorkerAnswer:
    return WorkerAnswer(state=state_of(builder), reason=reason, message="why" if reason else "")


def send(record: CallRecord, text: str, told: WorkerAnswer, now: float) -> str:
    record.begin(work(text), now)
    return record.end(call_for(text), told, now)


@pytest.mark.parametrize(
    ("told", "outcome", "why"),
    [
        (answer(JOINING), Outcome.NO_EFFECT, "its latch is closed"),
        (answer(JOINING, Reason.WRONG_PHASE), Outcome.REFUSED, "WrongPhase: why"),
        (SILENT, Outcome.UNANSWERED, "connection reset"),
    ],
)
def test_a_call_that_is_not_followed_waits_and_is_known(told, outcome, why):
    record = CallRecord()
    send(record, "admit 1", told, 0)

    assert record.wait_seconds(work("admit 1"), 0) == FIRST_SECONDS
    (found,) = record.unheeded(0.5)
    assert (found.work, found.outcome, found.why) == (work("admit 1"), outcome, why)
    assert found.seconds == 0.5
    assert not found.lasts


@pytest.mark.parametrize("told", [answer(JOINING), answer(JOINING, Reason.WRONG_PHASE), SILENT])
def test_it_lasts_after_a_minute(told):
    record, now = CallRecord(), 0.0
    while now <= REPORTED_SECONDS:
        send(record, "admit 1", told, now)
        now += LONGEST_SECONDS

    (found,) = record.unheeded(now)
    assert found.lasts


def test_a_worker_that_names_another_process_in_each_answer_gets_no_more_calls():
    """Without the news of a restart. It is reported like any other one."""
    record, now, sent = CallRecord(), 0.0, 0
    while now < REPORTED_SECONDS + LONGEST_SECONDS:
        joins = state_of(JOINING).model_copy(update={"instance": f"i-{sent}"})
        record.note_state(joins)
        send(record, "admit 1", WorkerAnswer(state=joins), now)
        sent, now = sent + 1, now + record.wait_seconds(work("admit 1"), now)

    assert sent <= 17
    assert [u.lasts for u in record.unheeded(now)] == [True]


def test_a_call_with_its_effect_leaves_nothing():
    record = CallRecord()

    assert send(record, "admit 1", answer(SERVING), 0) == ""
    assert record.wait_seconds(work("admit 1"), 0) == 0
    assert record.unheeded(0) == ()


def test_a_later_state_may_show_the_effect_of_a_call_without_an_answer():
    record = CallRecord()
    send(record, "admit 1", SILENT, 0)
    record.note_state(state_of(JOINING))
    assert record.unheeded(1)
    record.note_state(state_of(SERVING))

    assert record.unheeded(1) == ()
    assert record.wait_seconds(work("admit 1"), 0) == 0


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("stage 2", state_of(SERVING.doing("apply", "1"))),
        ("pause", state_of(SERVING).model_copy(update={"phase": "verifying"})),
    ],
)
def test_a_state_that_cannot_show_the_effect_does_not_end_its_wait(text, state):
    record = CallRecord()
    send(record, text, SILENT, 0)
    record.note_state(state)

    assert record.unheeded(0.5)
    assert record.wait_seconds(work(text), 0) == FIRST_SECONDS


def test_no_state_shows_the_result_of_a_comparison():
    record = CallRecord()
    send(record, "compare 1", SILENT, 0)
    record.note_state(state_of(SERVING))

    assert [u.outcome for u in record.unheeded(1)] == [Outcome.UNANSWERED]


def test_a_refusal_that_the_state_reports_keeps_the_pace_of_the_planners():
    refused = SERVING.refused("2", Reason.SOURCE_NOT_READY, age_seconds=0)
    record = CallRecord()
    for n in range(30):
        send(record, "stage 2", answer(refused, Reason.SOURCE_NOT_READY), n)
        assert record.wait_seconds(work("stage 2"), n) == FIRST_SECONDS
    assert record.unheeded(30) == ()


def test_the_failure_of_an_earlier_call_does_not_report_a_refusal():
    """A worker refuses calls also before it looks at the weights: in another phase, or of another caller."""
    record = CallRecord()
    for n in range(3):
        refused = SERVING.refused("2", Reason.DIGEST_MISMATCH, age_seconds=10 + n)
        send(record, "stage 2", answer(refused, Reason.WRONG_PHASE), n)

    assert record.wait_seconds(work("stage 2"), 2) > FIRST_SECONDS
    assert [u.outcome for u in record.unheeded(2)] == [Outcome.REFUSED]


def test_a_failure_that_came_while_the_call_was_under_way_reports_its_refusal():
    record = CallRecord()
    record.begin(work("stage 2"), 0)
    refused = SERVING.refused("2", Reason.DIGEST_MISMATCH, age_seconds=3)
    record.end(call_for("stage 2"), answer(refused, Reason.DIGEST_MISMATCH), 4)

    assert record.unheeded(4) == ()


def test_an_effect_that_does_not_last_is_distinguished_from_one_that_is_missing():
    record = CallRecord()
    for n in range(3):
        send(record, "fence", answer(JOINING), float(n))

    (found,) = record.unheeded(3)
    assert found.outcome is Outcome.REVERTED
    assert record.wait_seconds(work("fence"), 2) > 0
    assert record.unheeded(2 + LASTS_SECONDS) == ()


def test_renewals_of_a_pause_never_wait():
    record, paused = CallRecord(), make_worker().paused("1")
    for n in range(100):
        assert record.wait_seconds(work("pause"), 10.0 * n) == 0
        send(record, "pause", answer(paused), 10.0 * n)
    assert record.unheeded(1000) == ()


def test_pauses_of_one_rollout_after_the_other_never_wait():
    record = CallRecord()
    for n in range(100):
        version, now = str(n), n * 0.5
        for text, builder in (
            ("pause", make_worker().paused(str(n - 1))),
            (f"load {version}", make_worker().paused(version)),
            (f"resume {version}", make_worker().serving(version)),
        ):
            assert record.wait_seconds(work(text), now) == 0, text
            send(record, text, answer(builder), now)
    assert record.unheeded(50) == ()


def test_a_worker_that_undoes_every_step_is_called_ever_later():
    """Each answer shows the effect of its call, and the next one that it is gone."""
    record, sent, now = CallRecord(), 0, 0.0
    steps = [
        ("pause", make_worker().paused("1")),
        ("load 2", make_worker().paused("2")),
        ("resume 2", SERVING),
    ]
    while now < 60:
        text, builder = steps[sent % len(steps)]
        if not record.wait_seconds(work(text), now):
            send(record, text, answer(builder), now)
            sent += 1
        now += 0.01

    assert sent < 60
    assert {u.outcome for u in record.unheeded(now)} == {Outcome.REVERTED}


def test_what_is_not_sent_any_more_is_forgotten():
    record = CallRecord()
    send(record, "stage 2", answer(SERVING), 0)

    assert record.unheeded(FORGOTTEN_SECONDS) == ()


def test_while_a_call_is_repeated_its_last_outcome_stays_known():
    record = CallRecord()
    send(record, "stage 2", answer(SERVING), 0)
    record.begin(work("stage 2"), 1)

    assert [u.outcome for u in record.unheeded(1)] == [Outcome.NO_EFFECT]


def test_a_text_of_a_worker_is_cut():
    record = CallRecord()
    send(record, "admit 1", WorkerAnswer(silent=True, message="x" * 10_000), 0)

    assert len(record.unheeded(0)[0].why) == 200
