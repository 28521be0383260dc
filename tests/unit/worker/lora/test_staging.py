"""Staging a LoRA adapter: its files are checked and held, and the version before is served."""

from __future__ import annotations

from functools import partial
from shutil import rmtree
from typing import Any

import pytest
from tests.support.fake_engine import untouched
from tests.support.lora_harness import LoraHarness
from tests.support.present import present
from tests.support.stagers import InspectorWithStagers, stop
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, failing, refused

from fleet_worker.checkpoint import store_threads
from fleet_worker.checkpoint.files import OpenDirectory
from fleet_worker.errors import Refusal
from fleet_worker.lora.files import PrivateAdapter
from fleet_worker.protocol import AdapterRequest, AdapterState, Phase, Reason, Source, Staged


def state_of(lora: LoraHarness) -> AdapterState:
    (state,) = lora.harness.state.adapters
    return state


def staged_of(lora: LoraHarness) -> Staged:
    return present(state_of(lora).staged)


def reads_of(lora: LoraHarness, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions whose files the worker reads from now on."""
    reads: list[str] = []
    calls = lora.harness.agent.lora
    read = calls._read

    def noted(request: AdapterRequest, *given: Any) -> PrivateAdapter:
        reads.append(request.version)
        return read(request, *given)

    monkeypatch.setattr(calls, "_read", noted)
    return reads


async def test_a_staged_version_is_reported_and_not_served(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)

    state = state_of(lora)
    assert (state.version, state.digest, state.size_bytes) == (None, None, 0)
    assert state.staged is not None
    assert (state.staged.version, state.staged.in_memory) == ("1", True)
    assert str(state.staged.source) == str(path)
    assert lora.harness.engine.calls == []
    slots = present(lora.harness.state.adapter_slots)
    assert slots.used == 0
    assert lora.harness.agent.adapters.size_bytes == state.staged.size_bytes > 0


async def test_a_staged_version_is_served_without_reading_its_files_again(
    lora: LoraHarness,
) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    digest = staged_of(lora).digest
    lora.write("1", seed=9)  # other files take their place

    await lora.put("1", path, digest=digest)

    assert (state_of(lora).version, state_of(lora).digest) == ("1", digest)
    assert state_of(lora).staged is None


async def test_with_another_digest_than_the_staged_one_the_files_are_read_again(
    lora: LoraHarness,
) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    first = staged_of(lora).digest
    lora.write("1", seed=9)
    await lora.put("2", path, stage_only=True)
    other = staged_of(lora).digest
    assert first != other

    refusal = await lora.refused("2", path, digest=first)

    assert refusal.reason is Reason.DIGEST_MISMATCH
    assert lora.harness.state.adapters == ()


@pytest.mark.parametrize("stage_only", [True, False])
async def test_refused_files_of_an_adapter_are_not_read_again_until_they_change(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch, stage_only: bool
) -> None:
    path, wrong = lora.write("1"), "sha256:" + "0" * 64
    reads = reads_of(lora, monkeypatch)
    waits = []
    for _ in range(3):
        refusal = await lora.refused("1", path, digest=wrong, stage_only=stage_only)
        assert refusal.reason is Reason.DIGEST_MISMATCH
        waits.append(refusal.retry_after_seconds)
        failure = present(lora.harness.state.adapter_failure)
        assert failure.retry_after_seconds == refusal.retry_after_seconds
    assert (waits, len(reads)) == ([10, 20, 40], 1)

    lora.write("1", seed=9)
    again = await lora.refused("1", path, digest=wrong, stage_only=stage_only)
    assert (again.retry_after_seconds, len(reads)) == (10, 2)
    await lora.put("1", path)
    assert state_of(lora).version == "1"
    assert lora.harness.state.adapter_failure is None


async def test_reused_versions_of_an_adapter_are_not_read_again(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lora.put("1", lora.write("1"))
    other = lora.write("other", seed=9)
    reads = reads_of(lora, monkeypatch)
    reasons = [(await lora.refused("1", other)).reason for _ in range(2)]

    assert reasons == [Reason.VERSION_REUSED] * 2
    assert reads == ["1"]
    await lora.put("1", other, name="another", stage_only=True)
    await lora.put("2", other)
    assert reads == ["1", "1", "2"], "another name or version is another question"


@pytest.mark.parametrize("stage_only", [True, False])
async def test_a_staged_version_whose_files_were_rewritten_is_read_again(
    lora: LoraHarness, stage_only: bool
) -> None:
    """A peer that reads them now gets the new files under the same version."""
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    before = staged_of(lora).digest
    lora.write("1", seed=9)
    await lora.put("1", path, stage_only=stage_only)

    now = staged_of(lora).digest if stage_only else state_of(lora).digest
    assert now not in (None, before)


@pytest.mark.parametrize("seed", [1, 9])
async def test_the_files_of_a_served_version_are_compared_without_a_digest(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    reads = reads_of(lora, monkeypatch)
    await lora.put("1", path, stage_only=True)
    assert reads == []

    lora.write("1", seed=seed)  # also with the same bytes the files are new
    if seed != 1:
        assert (await lora.refused("1", path, stage_only=True)).reason is Reason.VERSION_REUSED
    else:
        await lora.put("1", path, stage_only=True)
    assert reads == ["1"]
    assert (state_of(lora).version, state_of(lora).staged) == ("1", None)


async def test_a_served_version_whose_source_leads_out_of_the_roots_is_not_the_same(
    lora: LoraHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = lora.harness.root / "current"
    link.symlink_to(lora.write("1"))
    await lora.put("1", link)
    link.unlink()
    link.symlink_to(tmp_path_factory.mktemp("outside"))

    refusal = await lora.refused("1", link, stage_only=True)

    assert refusal.reason is Reason.SOURCE_OUTSIDE_ROOTS
    assert state_of(lora).version == "1"


@pytest.mark.parametrize("stage_only", [True, False])
async def test_only_a_comparison_refuses_a_served_version_whose_store_does_not_answer(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch, stage_only: bool
) -> None:
    path = lora.write("1")
    await lora.put("1", path)

    def unreadable(*_: object) -> None:
        raise Refusal(Reason.SOURCE_UNREADABLE, "the source cannot be read: EIO")

    monkeypatch.setattr(OpenDirectory, "__init__", unreadable)
    if stage_only:
        refusal = await lora.refused("1", path, stage_only=True)
        assert refusal.reason is Reason.SOURCE_UNREADABLE
        failure = present(lora.harness.state.adapter_failure)
        assert (failure.version, failure.reason) == ("1", Reason.SOURCE_UNREADABLE)
    else:
        await lora.put("1", path)  # a trainer of an External fleet loads it again
    assert state_of(lora).version == "1"


async def test_a_served_version_whose_files_are_deleted_is_still_the_same(
    lora: LoraHarness,
) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    for step in ((path / "adapter_model.safetensors").unlink, partial(rmtree, path)):
        step()
        await lora.put("1", path, stage_only=True)
    assert (state_of(lora).version, lora.harness.state.adapter_failures) == ("1", ())


async def test_files_that_change_after_they_have_named_their_version_are_not_served(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, agent = TrainerHarness.of(lora.harness).files, lora.harness.agent
    put, path = agent.put_adapter, str(lora.write("refit"))

    async def rewritten(name: str, request: AdapterRequest, **named: Any) -> None:
        lora.write("refit", seed=9)
        await put(name, request, **named)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(agent, "put_adapter", rewritten)
        refusal = await refused(files.put_adapter(HOLDER, "tuned", path))
    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    assert (state_of(lora).version, lora.in_slots) == (None, [])

    label = await files.put_adapter(HOLDER, "tuned", path)
    assert (state_of(lora).version, state_of(lora).staged) == (label, None)


async def test_the_version_before_is_served_until_the_staged_one_is(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    before = state_of(lora).size_bytes
    await lora.put("2", lora.write("2", seed=2), stage_only=True)

    assert lora.in_slots == ["tuned@1"]
    assert (state_of(lora).version, state_of(lora).size_bytes) == ("1", before)


async def test_staging_another_version_replaces_the_staged_one(lora: LoraHarness) -> None:
    for version in ("1", "2"):
        await lora.put(version, lora.write(version, seed=int(version)), stage_only=True)

    assert staged_of(lora).version == "2"
    assert len(list(lora.private.iterdir())) == 1


async def test_staging_a_version_again_reads_nothing(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    monkeypatch.setattr(lora.harness.agent.lora, "_read", None)

    await lora.put("1", path, stage_only=True)

    assert state_of(lora).staged is not None


async def test_a_staged_version_that_is_not_wanted_any_more_leaves_its_memory_to_the_next(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lora.put("1", lora.write("1"))
    agent = lora.harness.agent
    room = int(2.5 * agent.adapters.size_bytes)  # for the served version and one more
    monkeypatch.setattr(agent, "memory_left", lambda: room - agent.adapters.size_bytes)
    await lora.put("2", lora.write("2", seed=2), stage_only=True)

    await lora.put("3", lora.write("3", seed=3), stage_only=True)

    assert (state_of(lora).version, staged_of(lora).version) == ("1", "3")


async def test_another_served_version_drops_the_staged_one(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"), stage_only=True)
    await lora.put("2", lora.write("2", seed=2))

    assert (state_of(lora).version, state_of(lora).staged) == ("2", None)
    assert len(list(lora.private.iterdir())) == 1


async def test_staging_the_served_version_again_drops_the_staged_one(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    await lora.put("2", lora.write("2", seed=2), stage_only=True)

    await lora.put("1", path, stage_only=True)

    assert (state_of(lora).version, state_of(lora).staged) == ("1", None)
    assert len(list(lora.private.iterdir())) == 1


async def test_a_removed_name_keeps_nothing(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"), stage_only=True)
    await lora.remove()

    assert lora.harness.state.adapters == ()
    assert list(lora.private.iterdir()) == []


async def test_a_staged_version_that_finds_no_slot_is_held_until_there_is_one(
    lora: LoraHarness,
) -> None:
    await lora.put("1", lora.write("1"))
    with lora.harness.agent.adapters.using("tuned"):
        await lora.put("2", lora.write("2", seed=2))
        path = lora.write("3", seed=3)
        await lora.put("3", path, stage_only=True)
        digest = staged_of(lora).digest

        refusal = await lora.refused("3", path, digest=digest)

        assert refusal.reason is Reason.NO_ADAPTER_SLOT
        assert staged_of(lora).version == "3"
    await soon(lambda: lora.in_slots == ["tuned@2"])
    lora.write("3", seed=9)  # other files take their place
    await lora.put("3", path, digest=digest)
    assert (state_of(lora).version, state_of(lora).digest) == ("3", digest)


async def test_a_version_that_finds_no_slot_is_read_once(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lora.put("1", lora.write("1"))
    with lora.harness.agent.adapters.using("tuned"):
        await lora.put("2", lora.write("2", seed=2))
        path = lora.write("3", seed=3)
        await lora.refused("3", path)
        monkeypatch.setattr(lora.harness.agent.lora, "_read", None)

        refusal = await lora.refused("3", path)

    assert refusal.reason is Reason.NO_ADAPTER_SLOT


async def test_a_version_that_goes_back_does_not_replace_one_that_was_staged_since(
    lora: LoraHarness,
) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    staged = lora.harness.agent.adapters.staged
    request = AdapterRequest(version="1", source=Source(path=str(path)), epoch=lora.harness.epoch())
    files = present(staged.take("tuned", request))
    await lora.put("2", lora.write("2", seed=2), stage_only=True)

    assert not staged.put_back("tuned", request, files)
    assert staged_of(lora).version == "2"
    files.close()


async def test_a_version_that_the_engine_rejects_keeps_no_files(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path, stage_only=True)
    lora.harness.engine.failures["add_adapter"] = [untouched()]

    await failing(lora.put("1", path))

    assert lora.harness.state.adapters == ()
    assert list(lora.private.iterdir()) == []


async def test_a_joining_worker_stages_and_other_phases_refuse(lora: LoraHarness) -> None:
    await lora.harness.fence()
    assert lora.harness.state.phase is Phase.JOINING
    await lora.put("1", lora.write("1"), stage_only=True)

    assert state_of(lora).staged is not None


async def test_a_stager_reads_the_bytes_of_an_adapter(
    lora: LoraHarness, inspector: InspectorWithStagers
) -> None:
    object.__setattr__(lora.harness.agent.staging.rules, "inspector", inspector)
    await lora.put("1", lora.write("1"))

    assert len(inspector.taken) == 1
    assert lora.in_slots == ["tuned@1"]


async def test_a_stager_that_hangs_in_the_store_of_an_adapter_is_ended(
    lora: LoraHarness, inspector: InspectorWithStagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(lora.harness.agent.staging.rules, "inspector", inspector)
    inspector.on_take(stop)
    almost = store_threads.SILENCE_SECONDS - 0.01
    silence = property(lambda _: 1000.0 if inspector.taken else almost)
    monkeypatch.setattr(store_threads.Pulse, "silent_seconds", silence)
    refusal = await lora.refused("1", lora.write("1"))

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert not inspector.taken[0].is_running
