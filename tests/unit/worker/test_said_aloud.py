"""What a worker says to others: logs without tokens and secrets, metrics of bounded size."""

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
from tests.unit.worker.conftest import Bench

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode, Phase, ProbeRequest, Reason, WorkerState
from fleet_worker.runtime.logs import JsonFormatter, fields

PROMPT = "a prompt that is nobody's business"


async def _a_day(bench: Bench) -> None:
    """Most of what can happen to a worker, good and bad."""
    await bench.probe(PROMPT)
    await bench.stage("1")
    await bench.pause(PauseMode.WAIT)
    await bench.load("1")
    await bench.resume("1")
    with pytest.raises(Refusal):
        await bench.stage("nothing", bench.root / "nothing")
    bench.engine.failures["sample"] = [untouched()]
    with pytest.raises(EngineFailure):
        await bench.probe(PROMPT)
    await bench.stage("22")
    bench.engine.failures["load"] = [touched()]
    with pytest.raises(EngineFailure):
        await bench.apply("22")
    await asyncio.sleep(0)  # for whoever looks
    await bench.admit("1")
    await bench.pause(lease=5)
    bench.clock.advance(6)
    await bench.agent.expire_lease()
    await bench.fence()
    await bench.agent.drain(patience_seconds=1)


async def test_over_a_whole_day_no_log_holds_a_prompt_or_a_token(
    serving: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await _a_day(serving)
    lines = [JsonFormatter().format(record) for record in caplog.records]

    assert len(lines) > 5
    assert not [line for line in lines if "business" in line]
    for line in lines:
        told = json.loads(line)
        assert not {"prompt", "prompts", "token_ids", "text"} & set(told)
        assert not any(isinstance(value, list) for value in told.values())


async def test_over_a_whole_day_the_state_is_always_one_that_can_be_sent(serving: Bench) -> None:
    seen: list[WorkerState] = []

    async def look() -> None:
        while True:
            text = serving.state.model_dump_json(by_alias=True)
            seen.append(WorkerState.model_validate_json(text))
            assert PROMPT not in text
            await asyncio.sleep(0)

    # Beyond the budget a load asks the file system, and the fake engine's loads can be looked at.
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    looking = asyncio.create_task(look())
    await _a_day(serving)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)

    assert looking.cancelled(), "no look has failed"
    phases = {state.phase for state in seen}
    assert {Phase.SERVING, Phase.LOADING, Phase.BROKEN, Phase.JOINING} <= phases
    for state in seen:
        assert not (state.admitted and state.version is None), "nobody is served by unknown weights"
        if state.phase is Phase.BROKEN:
            assert state.version is None


def _families(bench: Bench) -> dict[str, Any]:
    text = bench.agent.metrics.text().decode()
    for name in re.findall(r"^(rlfleet_worker_\w+)[{ ]", text, re.MULTILINE):
        plain = re.sub(r"_(total|created|bucket|sum|count)$", "", name)
        assert re.search(rf"^# HELP {plain}(_total|_created)? \S", text, re.MULTILINE), name
        assert re.search(rf"^# TYPE {plain}(_total|_created)? \w+$", text, re.MULTILINE), name
    return {each.name: each for each in text_string_to_metric_families(text)}


async def test_every_metric_has_help_and_type_and_its_labels_come_from_fixed_sets(
    serving: Bench,
) -> None:
    before = _families(serving)
    await _a_day(serving)
    after = _families(serving)

    assert set(before) == set(after), "a metric that comes later is missed by every alarm"
    for name, family in after.items():
        for sample in family.samples:
            allowed = {"phase": set(Phase), "reason": set(Reason)}
            for label, value in sample.labels.items():
                if label in allowed:
                    assert value in allowed[label], name
                else:
                    assert label in {"le", "version", "run_id", "digest", "adapter"}, name
    phases = [s for s in after["rlfleet_worker_phase"].samples if s.value == 1]
    assert [s.labels["phase"] for s in phases] == ["draining"]


async def test_a_thousand_versions_leave_one_label_in_the_metrics(serving: Bench) -> None:
    await serving.pause()
    for number in range(1000):
        await serving.agent.rename(f"v{number}")
    samples = _families(serving)["rlfleet_worker_version_info"].samples

    assert [(s.labels["version"], s.value) for s in samples] == [("v999", 1)]


async def test_weights_that_are_not_to_be_trusted_have_no_version_in_the_metrics(
    serving: Bench,
) -> None:
    serving.agent.version = None

    assert _families(serving)["rlfleet_worker_version_info"].samples == []


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=3))


@given(st.text(), st.dictionaries(st.sampled_from(["version", "why", "seconds"]), VALUES))
def test_whatever_is_logged_is_one_object_on_one_line(message: str, values: dict[str, Any]) -> None:
    record = logging.LogRecord("fleet_worker.x", logging.INFO, "f", 1, "%s", (message,), None)
    record.__dict__.update(fields("event", **values))
    line = JsonFormatter().format(record)

    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == message
    assert {key for key in told if key in values} == {k for k, v in values.items() if v is not None}


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
def test_prompts_have_bounds(body: dict[str, Any]) -> None:
    epoch = {"epoch": {"term": 1, "sequence": 1}}
    limits = {"prompts": ["x" * 4000] * 32, "max_tokens": 256}
    assert ProbeRequest.model_validate(limits | epoch)
    with pytest.raises(ValueError, match="validation error"):
        ProbeRequest.model_validate(body | epoch)
