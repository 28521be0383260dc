"""The signs that a worker's state must show after each kind of call that was answered with success."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from tests.support.builders import A_DIGEST, ANOTHER_DIGEST, WorkerBuilder, call_for, make_worker

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.call_effects import is_reported, missing_effect
from fleet_worker.protocol import (
    AdapterFailure,
    AdapterState,
    PromptsReport,
    Reason,
    WorkerState,
)

SERVING, JOINING = make_worker().serving("1"), make_worker().joining("1")


def state(builder: WorkerBuilder, **fields: object) -> WorkerState:
    found = builder.state()
    assert found is not None
    return found.model_copy(update=fields)


def with_adapter(version: str | None, *, staged: str | None = None) -> WorkerState:
    held = SERVING.staged(staged).state().staged if staged else None
    return state(SERVING, adapters=(AdapterState(name="lora", version=version, staged=held),))


PROBED = PromptsReport(version="1", finite=True, repetition=0.1)
SHOWN = {
    "stage 2": [
        SERVING.staged("2"),
        make_worker().serving("2"),
        SERVING.doing("load", "2"),
    ],
    "pause": [make_worker().paused("1"), JOINING, make_worker().loading("1", "2")],
    "load 2": [make_worker().paused("2"), make_worker().joining("2")],
    "apply 2": [make_worker().serving("2")],
    "resume 1": [SERVING, JOINING],
    "admit 1": [SERVING, make_worker().paused("1")],
    "fence": [JOINING],
    "compare 1": [SERVING],
}
MISSING = {
    "stage 2": [SERVING, SERVING.staged("3"), SERVING.doing("stage", "3")],
    "pause": [SERVING, make_worker().paused("1", lease_seconds=5)],
    "load 2": [make_worker().paused("1"), make_worker().joining(None)],
    "apply 2": [SERVING, SERVING.staged("2")],
    "resume 1": [make_worker().paused("1")],
    "admit 1": [JOINING],
    "fence": [SERVING, make_worker().paused("1")],
    "probe 1": [SERVING],
}


@pytest.mark.parametrize(
    ("call", "builder"), [(call, builder) for call, found in SHOWN.items() for builder in found]
)
def test_an_effect_that_is_there_is_not_missing(call, builder):
    assert missing_effect(call_for(call), state(builder)) == ""


@pytest.mark.parametrize(
    ("call", "builder"), [(call, builder) for call, found in MISSING.items() for builder in found]
)
def test_an_effect_that_is_not_there_is_named(call, builder):
    assert missing_effect(call_for(call), state(builder))


def test_of_adapters_too():
    put, stage, remove = (
        call_for(text) for text in ("adapter lora 2", "stage-adapter lora 2", "remove-adapter lora")
    )

    assert missing_effect(put, with_adapter("1", staged="2"))
    assert not missing_effect(put, with_adapter("2"))
    assert missing_effect(stage, with_adapter("1"))
    assert not missing_effect(stage, with_adapter("1", staged="2"))
    assert missing_effect(remove, with_adapter("1"))
    assert missing_effect(remove, with_adapter(None, staged="1"))
    assert not missing_effect(remove, state(SERVING))
    assert not missing_effect(call_for("compare-adapter lora 2"), with_adapter("1"))


def test_canary_prompts_must_be_about_the_version_in_the_engine():
    assert not missing_effect(call_for("probe 1"), state(SERVING, probe=PROBED))
    assert missing_effect(call_for("probe 2"), state(SERVING, probe=PROBED))


@pytest.mark.parametrize("kind", ["stage", "load", "apply"])
def test_other_weights_of_the_same_name_are_not_the_effect(kind):
    call = replace(call_for(f"{kind} 2"), digest=A_DIGEST)
    found = make_worker().serving("2")

    assert not missing_effect(call, state(found, digest=A_DIGEST))
    assert missing_effect(call, state(found, digest=ANOTHER_DIGEST))
    assert missing_effect(call, state(found, run_id="another-run", digest=A_DIGEST))


@pytest.mark.parametrize("kind", [k.kind for k in get_args(WorkerCall)])
def test_a_newer_release_may_have_words_of_its_own(kind):
    text = {"pause": "pause", "fence": "fence", "remove-adapter": "remove-adapter lora"}.get(
        kind, f"{kind} lora 2" if "adapter" in kind else f"{kind} 2"
    )

    missing = missing_effect(call_for(text), state(SERVING, phase="verifying"))

    # It has none of its own for the latch, which a fence closes.
    assert missing == ("its latch is open" if kind == "fence" else "")


def test_a_refusal_that_the_state_reports_is_known_from_there():
    refused = state(SERVING.refused("2", Reason.CHECKPOINT_TRUNCATED))
    adapter = AdapterFailure(
        name="lora", version="2", reason=Reason.SOURCE_ABSENT, message="", age_seconds=1
    )
    of_adapter = state(SERVING, adapter_failures=(adapter,))

    assert is_reported(call_for("stage 2"), refused, within_seconds=2)
    assert not is_reported(call_for("stage 3"), refused, within_seconds=2)
    assert not is_reported(call_for("admit 1"), refused, within_seconds=2)
    assert is_reported(call_for("adapter lora 2"), of_adapter, within_seconds=2)
    assert not is_reported(call_for("adapter other 2"), of_adapter, within_seconds=2)
    assert not is_reported(call_for("stage 2"), None, within_seconds=2)
