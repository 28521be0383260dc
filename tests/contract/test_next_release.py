"""A worker of an imagined next release, with new words everywhere: it is understood as far as it goes,
and taken for the most careful meaning beyond.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import NOW, applied_status, make_fleet, make_weights, make_worker
from tests.support.present import present

from fleet_operator.core.decision import decide
from fleet_operator.core.manifests.revisions import revision_of
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import ErrorReply, Phase, WorkerState
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import RolloutPhase

RECORDED = Path(__file__).parent / "recorded" / "state_of_an_imagined_next_release.json"
STATE: dict[str, Any] = json.loads(RECORDED.read_text())


def read(**changes: Any) -> WorkerState:
    return WorkerState.model_validate_json(json.dumps(STATE | changes))


def view(state: WorkerState) -> WorkerView:
    return replace(make_worker(0).serving("41").view(), state=state)


def test_the_state_of_a_worker_of_the_next_release_is_read() -> None:
    state = read()

    assert (state.protocol, state.phase, state.version) == (3, "verifying", "41")
    assert present(state.stage_failure).reason == "CheckpointEncrypted"
    assert present(state.pause).mode == "migrate"
    assert (state.source, state.management) == (None, "Hybrid")
    assert (present(state.staged).version, present(state.staged).source) == ("40", None)
    assert [a.version for a in state.adapters] == ["3"]


@pytest.mark.parametrize("field", sorted(STATE))
def test_each_new_word_alone_is_read(field: str) -> None:
    known = json.loads(make_worker(0).serving("41").view().state.model_dump_json(by_alias=True))

    assert WorkerState.model_validate_json(json.dumps(known | {field: STATE[field]}))


def test_a_refusal_with_a_new_reason_is_a_refusal_in_its_words() -> None:
    error = {"reason": "KeyMissing", "message": "no key opens it", "documentation": "https://x"}
    reply = ErrorReply.model_validate_json(json.dumps({"error": error, "state": STATE}))

    assert (str(reply.error.reason), reply.error.message) == ("KeyMissing", "no key opens it")


@pytest.mark.parametrize(
    ("admitted", "standing"),
    [
        pytest.param(True, Standing.OPEN, id="one that is admitted may generate"),
        pytest.param(False, Standing.CLOSED, id="one that is not is closed"),
    ],
)
def test_a_new_phase_is_judged_by_the_latch_and_busy(admitted: object, standing: Standing) -> None:
    worker = view(read(admitted=admitted, operation=None))

    assert worker.standing is standing
    assert worker.busy
    assert str(worker.operation) == "verifying"


def a_fleet(state: WorkerState, **weights: Any) -> FleetObserved:
    revision = revision_of(make_fleet(*(make_worker(n) for n in range(3))))
    workers = [make_worker(n).of_revision(revision).serving("41") for n in range(3)]
    fleet = make_fleet(*workers, **weights)
    first = replace(fleet.workers[0], state=state)
    return replace(fleet, workers=(first, *fleet.workers[1:]))


@pytest.mark.parametrize("protocol", [1, 3])
def test_another_protocol_is_reported_with_a_remedy(protocol: int) -> None:
    state = read(protocol=protocol, phase="serving", operation=None, pause=None)
    decision = decide(a_fleet(state), default_image="image", now=NOW)
    stalled = present(condition_of(decision.fleet.conditions, ConditionType.STALLED))

    assert stalled.reason == "ProtocolMismatch"
    assert stalled.message.startswith("1 worker uses another protocol than the operator.")
    assert f"policy-0 uses {protocol}, the operator 2" in stalled.message
    assert "spec.engine.image" in stalled.message


def test_the_protocol_of_this_release_is_nothing_to_say() -> None:
    state = read(protocol=2, phase="serving", operation=None, pause=None)
    decision = decide(a_fleet(state), default_image="image", now=NOW)

    assert condition_of(decision.fleet.conditions, ConditionType.STALLED) is None


def test_a_rollout_continues_with_safe_calls_and_no_worker_counts_as_silent() -> None:
    """Staging disturbs no worker, whatever phase it is in."""
    status = applied_status(
        "42",
        phase=RolloutPhase.STAGING,
        applied_version="41",
        started_at=NOW - timedelta(seconds=1),
        phase_started_at=NOW - timedelta(seconds=1),
    )
    fleet = a_fleet(read(stage_failure=None), wants=make_weights("42", status=status))
    decision = decide(fleet, default_image="image", now=NOW)

    assert {call.pod_name for call in decision.worker_calls} == {"policy-0", "policy-1", "policy-2"}
    assert {call.kind for call in decision.worker_calls} == {"stage"}
    assert not decision.pod_actions


def test_a_new_reason_is_not_a_reason_of_a_condition_whatever_it_spells() -> None:
    """`AllWorkersServing` is a reason of conditions, and no refusal of a worker."""
    failure = STATE["stage_failure"] | {"reason": "AllWorkersServing"}
    state = read(protocol=2, phase="serving", operation=None, pause=None, stage_failure=failure)
    status = applied_status(
        "42",
        phase=RolloutPhase.STAGING,
        applied_version="41",
        started_at=NOW - timedelta(seconds=2000),
        phase_started_at=NOW - timedelta(seconds=2000),
    )
    fleet = a_fleet(state, wants=make_weights("42", status=status))
    stalled = condition_of(
        decide(fleet, default_image="image", now=NOW).fleet.conditions, ConditionType.STALLED
    )

    assert stalled is not None
    assert stalled.reason not in {"AllWorkersServing", "ProtocolMismatch"}


def test_a_phase_of_this_release_stays_one() -> None:
    assert read(phase="paused").phase is Phase.PAUSED
