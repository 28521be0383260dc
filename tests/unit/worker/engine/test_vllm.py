"""Calls to vLLM's engine client, and the errors that its failures become."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_vllm_client import FakeVllmClient, answer_of
from tests.support.tiny import write_tiny
from tests.support.worker_harness import failing

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.keeping import OwnPass
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.engine.records import Checksum
from fleet_worker.engine.vllm import VllmEngine
from fleet_worker.errors import Refusal
from fleet_worker.protocol import EngineInfo, Reason

SEEN = {"compared": 4, "covered": 8, "changed": 2.0, "same": False, "why_not": ""}
GOOD = {"ok": True, "touched": True, "error": None, "reason": None, "copy_seconds": 0.5}
REFUSED = {
    "ok": False,
    "touched": False,
    "error": "no such file",
    "reason": None,
    "copy_seconds": None,
}
HELD: dict[str, Any] = {
    "done": True, "bytes": 8, "registered": 8, "buffers": True, "huge": 4, "why_not": "", "changes": 0,
}  # fmt: skip
NOTHING = HELD | {"bytes": 0, "registered": 0, "huge": 0}


@pytest.fixture
def client() -> FakeVllmClient:
    return FakeVllmClient()


@pytest.fixture
def engine(client: FakeVllmClient) -> VllmEngine:
    return VllmEngine(client, EngineInfo(version="0.32.0", model="policy"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    opened = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    yield opened
    opened.close()


async def test_a_load_passes_open_descriptors_instead_of_paths_and_what_differs_from_the_files(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = [GOOD, GOOD]
    (file,) = checkpoint.files
    checkpoint.read_all(budget=0, check_cancelled=lambda: None)
    checkpoint.copies, checkpoint.casts = {"head.weight": "embed.weight"}, {"embed.weight": "F16"}
    await engine.load(checkpoint)
    checkpoint.read_all(budget=1 << 20, check_cancelled=lambda: None)
    await engine.load(checkpoint)

    from_file, from_memory = [given for name, given in client.calls if name == "rlfleet_load"]
    ours = f"/proc/{os.getpid()}/fd/"
    held = checkpoint.held[file.name].descriptor
    assert from_file["files"] == [f"{ours}{file.descriptor}"]
    assert set(from_file["digests"]) == set(checkpoint.tensors)
    assert (from_file["copies"], from_file["casts"]) == (checkpoint.copies, checkpoint.casts)
    assert from_memory["files"] == [f"{ours}{held}"]
    assert from_memory["digests"] is None, "sealed bytes cannot change"


async def test_bytes_whose_memory_was_freed_are_compared_when_they_are_loaded_again(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = [GOOD, GOOD]
    checkpoint.read_all(budget=1 << 20, check_cancelled=lambda: None)
    checkpoint.leave_memory(OwnPass())
    await engine.load(checkpoint)

    (arguments,) = [given for name, given in client.calls if name == "rlfleet_load"]
    assert set(arguments["digests"]) == set(checkpoint.tensors)


async def test_a_load_that_finds_other_bytes_reports_changed_files(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    changed = REFUSED | {"touched": True, "reason": "CheckpointChanged"}
    client.answers["rlfleet_load"] = [GOOD, changed]
    failure = await failing(engine.load(checkpoint))

    assert (failure.touched, failure.reason) == (True, Reason.CHECKPOINT_CHANGED)


@pytest.mark.parametrize("call", ["load", "join"])
async def test_what_a_kernel_cannot_take_over_is_refused_before_the_call(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint, call: str
) -> None:
    client.answers["rlfleet_unfit_kernel"] = [None, "the kernel of up keeps its weights"]
    with pytest.raises(Refusal, match="kernel of up") as refused:
        await (engine.load(checkpoint) if call == "load" else engine.join_transfer({}))

    assert refused.value.reason is Reason.NOT_AVAILABLE
    assert [name for name, _ in client.calls] == ["rlfleet_unfit_kernel"]


async def test_a_load_lasts_until_the_slowest_process_has_all_bytes_and_compares_nothing(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = [GOOD, GOOD | {"copy_seconds": 0.75}]

    assert await engine.load(checkpoint) == 0.75
    assert "rlfleet_effect" not in [name for name, _ in client.calls]


async def test_processes_hold_sealed_memory_only(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_hold"] = [NOTHING]
    checkpoint.read_all(budget=0, check_cancelled=lambda: None)
    await engine.hold(checkpoint)
    checkpoint.read_all(budget=1 << 20, check_cancelled=lambda: None)
    await engine.hold(checkpoint)
    await engine.hold(None)

    (file,) = checkpoint.files
    link = f"/proc/{os.getpid()}/fd/{checkpoint.held[file.name].descriptor}"
    assert [given["links"] for _, given in client.calls] == [[], [link], []]


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        pytest.param([NOTHING, NOTHING], "", id="nothing"),
        pytest.param([HELD, HELD], "pinned", id="all are registered"),
        pytest.param(
            [HELD, HELD | {"registered": 0, "why_not": "error 801"}],
            "through pinned buffers: error 801",
            id="one process has not registered them",
        ),
        pytest.param(
            [HELD | {"registered": 0, "buffers": False, "why_not": "on CPUs"}],
            "pageable: on CPUs",
            id="no pinned memory",
        ),
    ],
)
async def test_the_line_about_copies_is_that_of_the_slowest_process(
    engine: VllmEngine, client: FakeVllmClient, answers: list[Any], line: str
) -> None:
    client.answers["rlfleet_hold"] = answers
    held = await engine.hold(None)

    assert held.is_done
    assert held.line.startswith(line)
    assert ("50% of the memory in huge pages" in held.line) == bool(line)


async def test_bytes_are_ready_once_all_processes_hold_them(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.answers["rlfleet_hold"] = [HELD, HELD | {"done": False}]

    assert not (await engine.hold(None)).is_done


async def test_all_processes_together_keep_no_more_of_what_differs_than_there_is_room(
    client: FakeVllmClient,
) -> None:
    """Each keeps all of it, and all together copy it once more in a load."""
    info = EngineInfo(version="0.32.0", model="policy", world_size=4)
    client.answers["rlfleet_hold"] = [HELD | {"changes": 20}] * 4
    held = await VllmEngine(client, info).hold(None, None, 104)

    assert client.calls[-1][1]["room"] == 20
    assert held.changes_bytes == 100


@pytest.mark.parametrize(
    ("drawn", "found"), [(["a", "a"], "a"), (["a", "b"], None), ([None, None], None)]
)
async def test_all_processes_of_an_engine_are_in_one_group(
    engine: VllmEngine, client: FakeVllmClient, drawn: list[str | None], found: str | None
) -> None:
    client.answers["rlfleet_group"] = drawn

    assert await engine.join_transfer({"world_size": 3}) == found
    assert ("init_weight_transfer_engine", {"init_info": {"world_size": 3}}) in client.calls


async def test_an_update_over_a_collective_is_compared_with_the_sample_before_it(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.answers["rlfleet_effect"] = [SEEN]
    client.answers["rlfleet_layers_without_all_parts"] = [[]]
    await engine.begin_transfer()
    await engine.end_transfer()
    effect = await engine.compare()

    names = [name for name, _ in client.calls]
    assert names == [
        "rlfleet_remember",
        "rlfleet_start_transfer",
        "rlfleet_layers_without_all_parts",
        "rlfleet_finish_transfer",
        "rlfleet_effect",
    ]
    assert effect.changed_share == 0.25


async def test_an_update_without_all_parts_of_a_layer_is_not_finished(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.answers["rlfleet_layers_without_all_parts"] = [[], ["model.qkv_proj"]]
    failure = await failing(engine.end_transfer())

    assert failure.touched
    assert "model.qkv_proj" in failure.message
    assert "rlfleet_finish_transfer" not in [name for name, _ in client.calls]


async def test_the_error_of_one_process_fails_the_call(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.answers["update_weights"] = [None, ValueError("a shape differs")]
    failure = await failing(engine.receive({"names": []}))

    assert (failure.message, failure.touched) == ("a shape differs", True)


@pytest.mark.parametrize("answer", [None, True, answer_of("rlfleet_load", GOOD)])
async def test_a_process_that_answers_to_another_call_fails_the_call(
    engine: VllmEngine, client: FakeVllmClient, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    answers = [answer_of("rlfleet_probe", GOOD), answer]
    monkeypatch.setattr(client, "of_each_process", lambda *_: answers)
    failure = await failing(engine.probe())

    assert failure.touched


async def test_a_load_that_every_process_refused_left_the_model_unchanged(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = [REFUSED]
    failure = await failing(engine.load(checkpoint))

    assert failure.touched is False
    assert "no such file" in failure.message


async def test_a_load_that_only_some_processes_did_changed_the_model(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = [GOOD, REFUSED]

    assert (await failing(engine.load(checkpoint))).touched is True


async def test_a_load_without_an_answer_may_have_changed_the_model(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint
) -> None:
    client.answers["rlfleet_load"] = RuntimeError("engine dead")

    assert (await failing(engine.load(checkpoint))).touched is True


async def test_a_failed_check_reports_what_it_saw(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    bad = {"ok": False, "error": "the logits are infinite or not numbers"}
    client.answers["rlfleet_probe"] = [{"ok": True, "error": None}, bad]
    failure = await failing(engine.probe())

    assert (failure.reason, failure.touched) == (Reason.PROBE_FAILED, True)
    assert "logits" in failure.message


async def test_the_checksum_covers_all_processes_by_rank(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    async def found(*ranks: str, complete: bool = True) -> Checksum:
        answers = [{"checksum": each, "complete": True} for each in ranks]
        answers[-1]["complete"] = complete
        client.answers["rlfleet_checksum"] = answers
        return await engine.checksum()

    both = await found("aa", "bb")
    assert both.is_complete
    assert not (await found("aa", "bb", complete=False)).is_complete

    assert both == await found("aa", "bb")
    assert len({both, await found("bb", "aa"), await found("aa"), await found("aa", "bc")}) == 4


async def test_all_caches_are_reset_and_a_cache_that_remains_is_a_failure(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    await engine.reset_caches()
    assert [name for name, _ in client.calls] == [
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
    ]
    client.answers["reset_prefix_cache"] = False

    assert (await failing(engine.reset_caches())).touched is True


async def test_a_label_that_the_engine_does_not_accept_is_a_failure(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    await engine.set_version("7@3fa9c1d04b2e")
    assert client.label == "7@3fa9c1d04b2e"
    client.answers["update_weight_version"] = None
    failure = await failing(engine.set_version("8@3fa9c1d04b2e"))

    assert failure.touched is True
    assert "@" not in failure.message, "the engine's labels are its own"
    assert "did not set the label" in failure.message


@pytest.mark.parametrize("call", ["ping", "resume"])
async def test_any_exception_of_the_client_becomes_an_engine_failure(
    engine: VllmEngine, client: FakeVllmClient, call: str
) -> None:
    client.answers["get_weight_version"] = client.answers["resume_generation"] = ValueError()
    failure = await failing(getattr(engine, call)())

    assert (failure.touched, failure.message) == (False, "ValueError")


def test_frequently_read_values_come_from_memory(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    assert engine.unfinished() == 7
    assert engine.is_dead is False
    client.errored = True
    assert engine.is_dead is True
    assert engine.info.model == "policy"
    assert client.calls == []


async def test_a_load_in_place_names_both_versions_and_says_why_a_process_refuses_it(
    engine: VllmEngine, client: FakeVllmClient, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    base = open_checkpoint(str(write_tiny(tmp_path / "0")), None)
    for each in (base, checkpoint):
        each.read_all(budget=1 << 20, check_cancelled=lambda: None)
    client.answers["rlfleet_hold"] = [HELD]
    client.answers["rlfleet_load_in_place"] = [
        {"why_not": None, "seconds": 0.1},
        {"why_not": "the model is quantised", "seconds": None},
    ]
    await engine.hold(checkpoint, base, samples=True)
    why = await engine.load_in_place(checkpoint, base)
    links = [[each.link_of(file) for file in each.files] for each in (checkpoint, base)]
    base.close()

    assert why == "the model is quantised"
    assert client.calls == [
        ("rlfleet_hold", {"links": links[0], "base": links[1], "room": 0, "samples": True}),
        ("rlfleet_load_in_place", {"files": links[0], "base": links[1], "copies": {}, "casts": {}}),
    ]
