"""Stages whose bytes a real stager reads: what a caller and the worker see of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.descriptors import left_open, open_descriptors
from tests.support.present import present
from tests.support.stagers import InspectorWithStagers, kill, stop
from tests.support.tiny import tiny_rules, write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, refused, stage_request

from fleet_worker.checkpoint import files
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.protocol import Phase, Reason


@pytest.fixture
def slot(tmp_path: Path, inspector: InspectorWithStagers) -> Staging:
    rules, initial = tiny_rules(tmp_path, inspector)
    initial.checkpoint.close()

    async def make_room(_size: int) -> int:
        return rules.budget_bytes

    return Staging(rules, Labels(), lambda: 0.0, make_room)


async def test_the_process_of_the_server_reads_no_bytes_of_a_version(
    tmp_path: Path, slot: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.os, "preadv", lambda *_: pytest.fail("it read a piece"))
    await slot.stage(stage_request("1", write_tiny(tmp_path / "1")))

    assert present(slot.staged).in_memory


async def test_a_newer_version_ends_the_stager_of_the_older_one_at_once(
    tmp_path: Path, slot: Staging, inspector: InspectorWithStagers
) -> None:
    inspector.on_take(stop)  # it would never answer
    older = asyncio.create_task(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))
    await soon(lambda: len(inspector.taken) == 1)
    inspector.on_take(lambda _: None)
    await slot.stage(stage_request("2", write_tiny(tmp_path / "2")))
    assert (await refused(older)).reason is Reason.SUPERSEDED
    assert present(slot.staged).version == "2"
    await soon(lambda: not inspector.taken[0].is_running)


async def test_a_stager_whose_store_is_silent_is_ended_and_the_store_named(
    tmp_path: Path, slot: Staging, inspector: InspectorWithStagers
) -> None:
    before = open_descriptors()
    inspector.on_take(stop)
    slot.silence_seconds = 0.5
    refusal = await refused(slot.stage(stage_request("1", write_tiny(tmp_path / "1"))))

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert str(tmp_path) in refusal.message
    await soon(lambda: not any(each.is_running for each in inspector.taken))
    inspector.stagers.close()
    await soon(lambda: not left_open(before))


async def test_a_worker_whose_stagers_die_serves_reports_it_and_stages_later(
    serving: WorkerHarness, inspector: InspectorWithStagers
) -> None:
    object.__setattr__(serving.agent.staging.rules, "inspector", inspector)
    inspector.on_take(kill)
    refusal = await refused(serving.stage("1"))

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "SIGKILL" in refusal.message
    assert len(inspector.taken) == 2, "a second one was tried"
    failure = present(serving.state.stage_failure)
    assert (failure.version, failure.reason) == ("1", Reason.SOURCE_UNREADABLE)
    assert serving.state.phase is Phase.SERVING
    inspector.on_take(lambda _: None)
    await serving.stage("1")
    assert serving.state.staged is not None
    assert serving.state.stage_failure is None


async def test_a_good_version_stays_in_memory_if_its_digests_cannot_be_made(
    serving: WorkerHarness, inspector: InspectorWithStagers
) -> None:
    await serving.stage("1")
    await serving.apply("1")
    rules = serving.agent.staging.rules
    object.__setattr__(rules, "inspector", inspector)
    object.__setattr__(rules, "budget_bytes", serving.agent.good.checkpoint.size_bytes)
    inspector.on_take(kill)
    await refused(serving.stage("2"))

    assert serving.agent.good.in_memory
    assert serving.agent.good.checkpoint.is_held
