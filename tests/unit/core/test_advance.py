"""The next call to a worker depends on its standing, its target, and its work."""

from __future__ import annotations

import pytest
from tests.support.builders import WorkerBuilder, make_spec, make_worker, target, texts_of

from fleet_operator.core.advance import Mode, Target, advance
from fleet_operator.core.facts import Workers
from fleet_operator.core.worker_view import WorkerView
from fleet_worker.protocol import Reason

HOW = make_spec().rollout
W = make_worker(0)


def next_calls(worker: WorkerBuilder | WorkerView, mode: Mode, version: str = "42") -> list[str]:
    view = worker if isinstance(worker, WorkerView) else worker.view()
    wished = advance(Workers([view]), Target(target(version), mode, "it must"), HOW)
    return [text.removesuffix(" on policy-0") for text in texts_of(wished)]


@pytest.mark.parametrize(
    ("worker", "wished"),
    [
        pytest.param(
            W.serving("41"),
            ["stage 42", "stage 42", None, "stage 42", "stage 42"],
            id="generates, lacks the bytes",
        ),
        pytest.param(
            W.serving("41").staged("42"),
            [None, "pause", None, "apply 42", "fence"],
            id="generates, has them",
        ),
        pytest.param(
            W.serving("42"), [None, "pause", None, None, None], id="generates the weights"
        ),
        pytest.param(
            W.paused("41"),
            ["stage 42", None, "stage 42", "resume 41", None],
            id="is held, lacks the bytes",
        ),
        pytest.param(
            W.paused("41").staged("42"),
            [None, None, "load 42", "resume 41", None],
            id="is held, has them",
        ),
        pytest.param(
            W.paused("42"), [None, None, None, "resume 42", None], id="is held with the weights"
        ),
        pytest.param(
            W.joining("41"),
            ["stage 42", None, None, "stage 42", "stage 42"],
            id="is closed, lacks the bytes",
        ),
        pytest.param(
            W.joining("41").staged("42"),
            ["load 42", None, None, "load 42", "load 42"],
            id="is closed, has them",
        ),
        pytest.param(
            W.joining("42"), [None, None, None, "admit 42", None], id="is closed with the weights"
        ),
        pytest.param(W.serving("41").silent(5).ready(), [None] * 5, id="is silent"),
        pytest.param(W.ended(), [None] * 5, id="is absent"),
    ],
)
def test_the_next_call_for_each_mode(worker, wished):
    found = [next_calls(worker, mode) for mode in Mode]

    assert found == [[] if call is None else [call] for call in wished]


ENDING = {"lease_seconds": 10.0}


@pytest.mark.parametrize(
    ("worker", "mode", "wished"),
    [
        pytest.param(W.paused("41", **ENDING), Mode.KEEP, ["pause"], id="a renewal comes first"),
        pytest.param(W.paused("41", **ENDING).staged("42"), Mode.LOAD, ["pause"], id="also here"),
        pytest.param(
            W.paused("41", **ENDING),
            Mode.SERVE,
            ["pause", "resume 41"],
            id="a resume may not be permitted",
        ),
        pytest.param(
            W.loading("41", "7").heard(16), Mode.SERVE, ["pause"], id="it is not resumed in a load"
        ),
        pytest.param(W.loading("41", "7"), Mode.KEEP, [], id="nor does it stage meanwhile"),
        pytest.param(
            W.serving("41").staged("42").asked_to("apply 42"), Mode.SERVE, [], id="it swaps already"
        ),
        pytest.param(
            W.serving("41").staged("42").asked_to("apply 42"),
            Mode.HOLD,
            ["pause"],
            id="a pause waits for nothing",
        ),
        pytest.param(W.serving("41").doing("stage", "42"), Mode.KEEP, [], id="it stages them"),
        pytest.param(
            W.serving("41").doing("stage", "7"), Mode.KEEP, ["stage 42"], id="it stages others"
        ),
        pytest.param(
            W.joining("42").asked_to("admit 42"), Mode.SERVE, [], id="its outcome is unknown"
        ),
        pytest.param(
            W.serving("41").refused("42", Reason.SOURCE_NOT_FOUND), Mode.KEEP, [], id="it waits"
        ),
        pytest.param(
            W.serving("41").refused("42", Reason.SOURCE_NOT_FOUND, age_seconds=60),
            Mode.KEEP,
            ["stage 42"],
            id="it tries again",
        ),
    ],
)
def test_what_a_worker_does_already_counts(worker, mode, wished):
    assert next_calls(worker, mode) == wished
