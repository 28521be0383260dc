"""Consistency of the protocol between operator and worker."""

from __future__ import annotations

import json

import pytest

from fleet_worker.errors import Refusal, shorten, status_of
from fleet_worker.protocol import (
    Epoch,
    ErrorDetail,
    Failure,
    Phase,
    Reason,
    Source,
    StageRequest,
    WorkerState,
)


def test_every_reason_has_a_status_of_errors() -> None:
    assert [reason for reason in Reason if not 400 <= status_of(reason) < 600] == []


def test_only_failures_of_the_engine_are_server_errors() -> None:
    assert {reason for reason in Reason if status_of(reason) >= 500} == {
        Reason.ENGINE_FAILED,
        Reason.PROBE_FAILED,
    }


def test_messages_fit_into_the_fields_that_carry_them() -> None:
    refusal = Refusal(Reason.BAD_REQUEST, "word " * 1000)

    ErrorDetail(reason=refusal.reason, message=refusal.message)
    Failure(version=None, reason=refusal.reason, message=refusal.message, age_seconds=0)


def test_messages_have_one_line() -> None:
    assert shorten("a\n  b\tc") == "a b c"
    assert shorten("abcdef", limit=4) == "abc…"


def test_a_state_of_a_newer_worker_can_be_read() -> None:
    state = WorkerState(
        worker="w",
        instance="i",
        uptime_seconds=1,
        phase=Phase.SERVING,
        admitted=True,
        version="1",
        source=Source(path="/x"),
    )
    newer = json.loads(state.model_dump_json(by_alias=True)) | {"of_tomorrow": {"a": 1}}

    assert WorkerState.model_validate(newer) == state


def test_a_request_of_an_older_operator_can_be_read() -> None:
    body = {"version": "1", "source": {"path": "/x"}, "epoch": {"term": 0, "sequence": 0}}

    assert StageRequest.model_validate(body).digest is None


@pytest.mark.parametrize(("older", "newer"), [((1, 9), (2, 0)), ((1, 1), (1, 2)), ((0, 0), (0, 1))])
def test_epochs_are_ordered_by_term_then_sequence(
    older: tuple[int, int], newer: tuple[int, int]
) -> None:
    first, second = (Epoch(term=t, sequence=s) for t, s in (older, newer))

    assert first < second
    assert not second < first
