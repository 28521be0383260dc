"""Logs hold no tokens and no secrets, and the size of the metrics is bounded."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_engine import touched, untouched
from tests.support.worker_harness import WorkerHarness, failing, refused

from fleet_worker.lifecycle.freshness import LAG_LABELS
from fleet_worker.lifecycle.metrics import PORTS
from fleet_worker.logs import fields, json_formatter
from fleet_worker.protocol import PauseMode, Phase, PromptsRequest, Reason, WorkerState

PROMPT = "a prompt with a secret"


async def _a_day(harness: WorkerHarness) -> None:
    """Most of what can happen to a worker, good and bad."""
    await harness.run_prompts(PROMPT)
    await harness.stage("1")
    await harness.pause(PauseMode.WAIT)
    await harness.load("1")
    await harness.resume("1")
    await refused(harness.stage("nothing", harness.root / "nothing"))
    harness.engine.failures["sample"] = [untouched()]
    await failing(harness.run_prompts(PROMPT))
    await harness.stage("22")
    harness.engine.failures["load"] = [touched()]
    await failing(harness.apply("22"))
    await asyncio.sleep(0)  # for waiting readers
    await harness.admit("1")
    await harness.pause(lease=5)
    harness.clock.advance(6)
    await harness.agent.expire_lease()
    await harness.fence()
    await harness.agent.drain(patience_seconds=1)


async def test_no_log_line_has_a_prompt_or_a_token(
    serving: WorkerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await _a_day(serving)
    lines = [json_formatter().format(record) for record in caplog.records]

    assert len(lines) > 5
    assert not [line for line in lines if "with a secret" in line]
    for line in lines:
        logged = json.loads(line)
        assert not {"prompt", "prompts", "token_ids", "text"} & set(logged)
        assert not any(isinstance(value, list) for value in logged.values())


async def test_every_state_on_the_way_is_valid_and_has_no_prompt(serving: WorkerHarness) -> None:
    seen: list[WorkerState] = []

    async def look() -> None:
        while True:
            text = serving.state.model_dump_json(by_alias=True)
            seen.append(WorkerState.model_validate_json(text))
            assert PROMPT not in text
            await asyncio.sleep(0)

    # Beyond the budget a load reads from the file system; the test reads the fake engine's loads.
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    looking = asyncio.create_task(look())
    await _a_day(serving)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)

    assert looking.cancelled(), "no look has failed"
    phases = {state.phase for state in seen}
    assert {Phase.SERVING, Phase.LOADING, Phase.BROKEN, Phase.JOINING} <= phases
    for state in seen:
        assert not (state.admitted and state.version is None), "unknown weights do not serve"
        if state.phase is Phase.BROKEN:
            assert state.version is None


def _families(harness: WorkerHarness) -> dict[str, Any]:
    text = harness.agent.metrics.text().decode()
    for name in re.findall(r"^(rlfleet_worker_\w+)[{ ]", text, re.MULTILINE):
        plain = re.sub(r"_(total|created|bucket|sum|count)$", "", name)
        assert re.search(rf"^# HELP {plain}(_total|_created)? \S", text, re.MULTILINE), name
        assert re.search(rf"^# TYPE {plain}(_total|_created)? \w+$", text, re.MULTILINE), name
    return {each.name: each for each in text_string_to_metric_families(text)}


async def test_every_metric_has_help_type_and_labels_from_fixed_sets(
    serving: WorkerHarness,
) -> None:
    before = _families(serving)
    await _a_day(serving)
    after = _families(serving)

    assert set(before) == set(after), "a metric that comes later is missed by every alarm"
    for name, family in after.items():
        for sample in family.samples:
            allowed = {"phase": set(Phase), "reason": set(Reason), "lag": set(LAG_LABELS)}
            allowed["port"] = set(PORTS)
            for label, value in sample.labels.items():
                if label in allowed:
                    assert value in allowed[label], name
                else:
                    assert label in {"le", "version", "run_id", "digest", "adapter"}, name
    phases = [s for s in after["rlfleet_worker_phase"].samples if s.value == 1]
    assert [s.labels["phase"] for s in phases] == ["draining"]


async def test_a_thousand_versions_leave_one_label_in_the_metrics(serving: WorkerHarness) -> None:
    await serving.pause()
    for number in range(1000):
        await serving.agent.rename(f"v{number}")
    samples = _families(serving)["rlfleet_worker_version_info"].samples

    assert [(s.labels["version"], s.value) for s in samples] == [("v999", 1)]


async def test_untrusted_weights_have_no_version_in_the_metrics(serving: WorkerHarness) -> None:
    serving.agent.version = None

    assert _families(serving)["rlfleet_worker_version_info"].samples == []


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3))


@given(st.text(), st.dictionaries(st.sampled_from(["version", "why", "seconds"]), VALUES))
def test_every_log_record_is_one_json_object_on_one_line(
    message: str, values: dict[str, Any]
) -> None:
    record = logging.LogRecord("fleet_worker.x", logging.INFO, "f", 1, "%s", (message,), None)
    record.__dict__.update(fields("event", **values))
    line = json_formatter().format(record)

    assert "\n" not in line
    logged = json.loads(line)
    assert logged["message"] == message
    assert {key for key in logged if key in values} == {
        k for k, v in values.items() if v is not None
    }


@pytest.mark.parametrize(
    "body",
    [
        {"prompts": []},
        {"prompts": [""]},
        {"prompts": ["x"] * 33},
        {"prompts": ["x" * 4001]},
        {"prompts": ["x"], "max_tokens": 0},
        {"prompts": ["x"], "max_tokens": 257},
    ],
    ids=["none", "empty", "too many", "too long", "no tokens", "too many tokens"],
)
def test_the_size_of_canary_prompts_is_bounded(body: dict[str, Any]) -> None:
    epoch = {"epoch": {"term": 1, "sequence": 1}, "compare_with": "base"}
    limits = {"prompts": ["x" * 4000] * 32, "max_tokens": 256}
    assert PromptsRequest.model_validate(limits | epoch)
    with pytest.raises(ValueError, match="validation error"):
        PromptsRequest.model_validate(body | epoch)
