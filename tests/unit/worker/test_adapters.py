"""Adapters: what is refused, which version a request gets, and when a version leaves the engine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.adapters import CONFIG_FILE, TINY_MODULES, WEIGHTS_FILE, write_adapter
from tests.support.fake_engine import touched, untouched
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.engine_adapter import FIRST_NUMBER, engine_name, weight_name_of
from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.core.weight_names import WeightName
from fleet_worker.protocol import AdapterRemoval, AdapterRequest, Phase, Reason, Source
from fleet_worker.runtime.adapters import Adapters


class Lab:
    """A serving worker with room for two adapter versions."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.agent.adapters._slots = 2
        bench.agent.adapters.max_rank = 8

    def write(self, folder: str, *, seed: int = 1, **options: Any) -> Path:
        return write_adapter(
            self.bench.root / folder, seed=seed, modules=TINY_MODULES, rank=2, **options
        )

    async def put(self, version: str, path: Path, *, name: str = "tuned", **body: Any) -> None:
        source = Source(path=str(path))
        request = AdapterRequest(version=version, source=source, epoch=self.bench.epoch(), **body)
        await self.bench.agent.put_adapter(name, request)

    async def remove(self, name: str = "tuned") -> None:
        await self.bench.agent.remove_adapter(name, AdapterRemoval(epoch=self.bench.epoch()))

    async def refused(self, version: str, path: Path, **body: Any) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            await self.put(version, path, **body)
        return refusal.value

    @property
    def private(self) -> Path:
        """Where the worker keeps what the engine reads."""
        return self.bench.root / "private"

    @property
    def in_slots(self) -> list[str]:
        return sorted(self.bench.engine.adapters.values())


@pytest.fixture
async def lab(
    serving: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Lab]:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    made = Lab(serving)
    yield made
    serving.agent.adapters.close()
    await soon(lambda: list(private.iterdir()) == [])


# --- putting ------------------------------------------------------------------------------------


async def test_a_worker_without_room_says_so(serving: Bench) -> None:
    lab = Lab(serving)
    serving.agent.adapters = Adapters(serving.engine, slots=0, max_rank=0)
    refusal = await lab.refused("1", lab.write("1"))

    assert refusal.reason is Reason.ADAPTERS_OFF
    assert serving.state.adapter_slots is None


async def test_an_adapter_is_in_the_engine_before_it_is_served(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))

    assert lab.bench.engine.calls == ["add_adapter tuned@1", "serve_adapter tuned True"]
    (state,) = lab.bench.state.adapters
    assert (state.name, state.version, state.requests, state.retiring) == ("tuned", "1", 0, ())
    assert state.digest is not None
    assert state.size_bytes > 0
    slots = lab.bench.state.adapter_slots
    assert slots is not None
    assert (slots.total, slots.used, slots.max_rank) == (2, 1, 8)


async def test_the_same_version_again_changes_nothing(lab: Lab) -> None:
    path = lab.write("1")
    await lab.put("1", path)
    await lab.put("1", path)
    digest = lab.bench.state.adapters[0].digest
    await lab.put("1", path, digest=digest)

    assert lab.bench.engine.calls.count("add_adapter tuned@1") == 1


async def test_two_puts_of_one_version_at_once_make_one(lab: Lab) -> None:
    path = lab.write("1")
    await asyncio.gather(lab.put("1", path), lab.put("1", path))

    assert lab.in_slots == ["tuned@1"]
    assert len(list(lab.private.iterdir())) == 1


async def test_engine_numbers_are_never_those_of_warm_up_adapters_nor_used_twice(lab: Lab) -> None:
    for version in ("1", "2", "3"):
        await lab.put(version, lab.write(version, seed=int(version)))

    assert list(lab.bench.engine.adapters) == [FIRST_NUMBER + 2]
    assert weight_name_of("tuned@1.2@3fa9c1d04b2e") == WeightName("1.2", None, "3fa9c1d04b2e")
    of_a_run = engine_name("tuned", "1.2", "3fa9c1d04b2e", "run-8")
    assert weight_name_of(of_a_run) == WeightName("1.2", "run-8", "3fa9c1d04b2e")


async def test_a_swap_serves_the_new_version_and_unloads_the_old_one(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    await lab.put("2", lab.write("2", seed=2))

    assert lab.bench.engine.calls[-3:] == [
        "add_adapter tuned@2",
        "serve_adapter tuned True",
        "remove_adapter tuned@1",
    ]
    assert lab.in_slots == ["tuned@2"]


async def test_requests_keep_their_version_to_the_end(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    using = lab.bench.agent.adapters.using
    with using("tuned") as first:
        await lab.put("2", lab.write("2", seed=2))
        with using("tuned") as second:
            assert [weight_name_of(each.name).version for each in (first, second)] == ["1", "2"]
            assert lab.in_slots == ["tuned@1", "tuned@2"]
            (state,) = lab.bench.state.adapters
            assert (state.version, state.requests) == ("2", 1)
            assert [(r.version, r.requests) for r in state.retiring] == [("1", 1)]
    await soon(lambda: lab.in_slots == ["tuned@2"])
    assert lab.bench.state.adapters[0].retiring == ()


async def test_a_version_without_a_slot_is_refused_and_the_old_one_is_served_on(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    with lab.bench.agent.adapters.using("tuned"):
        await lab.put("2", lab.write("2", seed=2))
        refusal = await lab.refused("3", lab.write("3", seed=3))

        assert refusal.reason is Reason.NO_ADAPTER_SLOT
        assert "tuned at 1 (1 requests)" in refusal.message
        assert refusal.retry_after_seconds is not None
        assert lab.bench.state.adapters[0].version == "2"
    await soon(lambda: lab.in_slots == ["tuned@2"])
    await lab.put("3", lab.write("3", seed=3))
    assert lab.in_slots == ["tuned@3"]


async def test_a_sleeping_engine_takes_no_adapter(lab: Lab) -> None:
    lab.bench.agent.asleep = True
    refusal = await lab.refused("1", lab.write("one"))

    assert refusal.reason is Reason.WRONG_PHASE
    assert lab.in_slots == []


async def test_names_that_fill_all_slots_leave_no_room_for_a_swap(lab: Lab) -> None:
    await lab.put("1", lab.write("1"), name="one")
    await lab.put("1", lab.write("other", seed=5), name="two")
    refusal = await lab.refused("2", lab.write("2", seed=2), name="one")

    assert refusal.reason is Reason.NO_ADAPTER_SLOT
    assert refusal.retry_after_seconds is None


async def test_deleting_the_directory_changes_nothing(lab: Lab) -> None:
    path = lab.write("1")
    await lab.put("1", path)
    before = lab.bench.engine.adapters.copy()
    shutil.rmtree(path)
    await lab.bench.stage("base-2")
    await lab.bench.pause()
    await lab.bench.load("base-2")

    # The load threw it out; the fake engine reads its files when it is put back.
    assert lab.bench.engine.adapters == before


async def test_bytes_cannot_be_changed_under_the_engine(lab: Lab) -> None:
    path = lab.write("1")
    await lab.put("1", path)
    (private,) = lab.private.iterdir()
    held = (private / WEIGHTS_FILE).read_bytes()
    (path / WEIGHTS_FILE).write_bytes(b"something else")

    assert (private / WEIGHTS_FILE).read_bytes() == held
    with pytest.raises(OSError, match="not permitted"):
        (private / WEIGHTS_FILE).write_bytes(b"x")


async def test_the_bytes_of_adapters_count_as_staged_memory(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    size = lab.bench.state.adapters[0].size_bytes
    budget = lab.bench.agent.staging.rules.budget_bytes
    assert lab.bench.agent.memory_left() == budget - size

    await lab.bench.stage("7")
    staged = lab.bench.state.staged
    assert staged is not None
    assert lab.bench.agent.memory_left() == budget - size - staged.size_bytes


async def test_an_adapter_without_memory_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.bench.agent, "memory_left", lambda: 10)
    refusal = await lab.refused("1", lab.write("1"))

    assert (refusal.reason, "memory" in refusal.message) == (Reason.NO_ADAPTER_SLOT, True)


# --- removing -----------------------------------------------------------------------------------


async def test_a_removed_adapter_is_not_served_and_leaves_with_its_last_request(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    with lab.bench.agent.adapters.using("tuned"):
        await lab.remove()
        (state,) = lab.bench.state.adapters
        assert (state.version, [r.requests for r in state.retiring]) == (None, [1])
        with (
            pytest.raises(Refusal, match="not served any more"),
            lab.bench.agent.adapters.using("tuned"),
        ):
            pass
    await soon(lambda: lab.in_slots == [])
    assert lab.bench.state.adapters == ()


async def test_removing_twice_is_removing_once(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    await lab.remove()
    await lab.remove()

    assert lab.bench.engine.calls.count("remove_adapter tuned@1") == 1


async def test_many_names_one_after_the_other_leave_nothing_behind(lab: Lab) -> None:
    path = lab.write("1")
    for number in range(30):
        await lab.put("1", path, name=f"tuned-{number}")
        await lab.remove(f"tuned-{number}")

    adapters = lab.bench.agent.adapters
    assert (adapters._served, adapters._loaded) == ({}, [])
    assert lab.bench.state.adapters == ()


# --- failures -----------------------------------------------------------------------------------


async def test_an_engine_that_does_not_take_it_goes_on_with_the_version_before(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    lab.bench.engine.failures["add_adapter"] = [untouched()]
    with pytest.raises(EngineFailure):
        await lab.put("2", lab.write("2", seed=2))

    (state,) = lab.bench.state.adapters
    assert state.version == "1"
    assert lab.in_slots == ["tuned@1"]
    failure = lab.bench.state.adapter_failure
    assert failure is not None
    assert (failure.name, failure.version, failure.reason) == ("tuned", "2", Reason.ENGINE_FAILED)
    await lab.put("2", lab.write("2", seed=2))
    assert lab.bench.state.adapter_failure is None


async def test_a_version_that_does_not_leave_keeps_its_slot_and_its_files(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    lab.bench.engine.failures["remove_adapter"] = [untouched()]
    await lab.put("2", lab.write("2", seed=2))

    (state,) = lab.bench.state.adapters
    assert (state.version, [r.version for r in state.retiring]) == ("2", ["1"])
    assert len(list(lab.private.iterdir())) == 2
    await lab.put("3", lab.write("3", seed=3))
    assert lab.in_slots == ["tuned@3"]


async def test_a_load_that_cannot_put_adapters_back_is_a_failed_load(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    await lab.bench.stage("7")
    await lab.bench.pause()
    lab.bench.engine.failures["add_adapter"] = [touched()]
    with pytest.raises(EngineFailure, match="could not be put back"):
        await lab.bench.load("7")

    assert lab.bench.state.phase is Phase.JOINING
    assert lab.bench.state.version == "base"
    assert lab.in_slots == ["tuned@1"]


async def test_adapters_are_put_back_before_the_label_says_that_all_is_well(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    await lab.bench.stage("7")
    await lab.bench.pause()
    lab.bench.engine.calls.clear()
    await lab.bench.load("7")

    assert lab.bench.engine.calls[2:] == [
        "probe",
        "add_adapter tuned@1",
        "reset_caches",
        "set_version 7",
    ]


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.PAUSED, Phase.SERVING])
async def test_adapters_come_to_workers_that_join_that_are_paused_and_that_serve(
    lab: Lab, phase: Phase
) -> None:
    if phase is Phase.PAUSED:
        await lab.bench.pause()
    if phase is Phase.JOINING:
        await lab.bench.fence()
    await lab.put("1", lab.write("1"))

    assert lab.bench.state.phase is phase
    assert lab.in_slots == ["tuned@1"]


async def test_a_second_driver_changes_no_adapters(lab: Lab) -> None:
    await lab.bench.pause(holder="trainer")

    assert (await lab.refused("1", lab.write("1"))).reason is Reason.HELD_BY_ANOTHER
    await lab.put("1", lab.write("1"), holder="trainer")


async def test_the_models_own_name_is_no_adapters_name(lab: Lab) -> None:
    refusal = await lab.refused("1", lab.write("1"), name="fake")

    assert refusal.reason is Reason.BAD_REQUEST


# --- what is refused ----------------------------------------------------------------------------


def _cut(path: Path) -> None:
    os.truncate(path / WEIGHTS_FILE, 100)


def _without_weights(path: Path) -> None:
    (path / WEIGHTS_FILE).unlink()


def _without_config(path: Path) -> None:
    (path / CONFIG_FILE).unlink()


def _pickled(path: Path) -> None:
    (path / WEIGHTS_FILE).rename(path / "adapter_model.bin")


def _config_is_text(path: Path) -> None:
    (path / CONFIG_FILE).write_text("r = 2")


def _without_targets(path: Path) -> None:
    config = json.loads((path / CONFIG_FILE).read_text())
    del config["target_modules"]
    (path / CONFIG_FILE).write_text(json.dumps(config))


def _edited(edit: Callable[[damage.Tensors], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors = damage.read_tensors(path / WEIGHTS_FILE)
        edit(tensors)
        damage.write_tensors(path / WEIGHTS_FILE, tensors)

    return change


A, B = "base_model.model.embed.lora_A.weight", "base_model.model.embed.lora_B.weight"


def _only_one_side(tensors: damage.Tensors) -> None:
    del tensors[B]


def _other_inputs(tensors: damage.Tensors) -> None:
    tensors[A] = ("F32", [2, 5], bytes(40))


def _other_rank(tensors: damage.Tensors) -> None:
    tensors[A], tensors[B] = ("F32", [1, 4], bytes(16)), ("F32", [2, 1], bytes(8))


def _other_module(tensors: damage.Tensors) -> None:
    tensors["base_model.model.ebmed.lora_A.weight"] = tensors.pop(A)


def _a_whole_module(tensors: damage.Tensors) -> None:
    tensors["base_model.model.embed.weight"] = ("F32", [2, 4], bytes(32))


def _integers(tensors: damage.Tensors) -> None:
    tensors[A] = ("I32", [2, 4], bytes(32))


def _twice(tensors: damage.Tensors) -> None:
    tensors[A.removeprefix("base_model.model.")] = tensors[A]


def _nothing(tensors: damage.Tensors) -> None:
    tensors.clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_cut, Reason.CHECKPOINT_TRUNCATED),
        (_without_weights, Reason.SOURCE_NOT_FOUND),
        (_without_config, Reason.SOURCE_NOT_FOUND),
        (_pickled, Reason.CHECKPOINT_MALFORMED),
        (_config_is_text, Reason.CHECKPOINT_MALFORMED),
        (_edited(_only_one_side), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_inputs), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_rank), Reason.CHECKPOINT_MISMATCH),
        (_edited(_other_module), Reason.CHECKPOINT_MISMATCH),
        (_edited(_a_whole_module), Reason.CHECKPOINT_MISMATCH),
        (_edited(_integers), Reason.CHECKPOINT_MISMATCH),
        (_edited(_twice), Reason.CHECKPOINT_MISMATCH),
        (_edited(_nothing), Reason.CHECKPOINT_MISMATCH),
        (_without_targets, Reason.CHECKPOINT_MALFORMED),
        (shutil.rmtree, Reason.SOURCE_ABSENT),
    ],
)
async def test_a_bad_adapter_is_refused_before_the_engine_hears_of_it(
    lab: Lab, change: Callable[[Path], None], reason: Reason
) -> None:
    path = lab.write("1")
    change(path)
    refusal = await lab.refused("1", path)

    assert refusal.reason is reason
    assert lab.bench.engine.calls == []
    failure = lab.bench.state.adapter_failure
    assert failure is not None
    assert failure.reason is reason


@pytest.mark.parametrize(
    "config",
    [
        {"r": 9},
        {"rank_pattern": {"embed": 64}},
        {"rank_pattern": {"embed": 4}},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["head"]},
        {"peft_type": "IA3"},
        {"init_lora_weights": "pissa_niter_4"},
    ],
    ids=lambda config: next(iter(config)),
)
async def test_what_the_engine_cannot_compute_is_refused(lab: Lab, config: dict[str, Any]) -> None:
    refusal = await lab.refused("1", lab.write("1", **config))

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH


@pytest.mark.parametrize(
    "config",
    [
        {"r": "2"},
        {"r": 0},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": float("nan")},
        {"lora_alpha": float("inf")},
        {"lora_alpha": True},
        {"rank_pattern": {"x": "y"}},
        {"rank_pattern": [2]},
        {"rank_pattern": {"x": 0}},
        {"rank_pattern": {"x": -2}},
        {"rank_pattern": {"x(": 2}},
        {"alpha_pattern": {"x": float("nan")}},
        {"alpha_pattern": {"x": "y"}},
        {"alpha_pattern": [2]},
        {"alpha_pattern": {"*": 2}},
        {"alpha_pattern": {"(a+)+b": 2}},
        {"rank_pattern": {".*.*.*.*x": 2}},
        {"rank_pattern": {"a?" * 30 + "a" * 30: 2}},
        {"lora_alpha": 10**400},
        {"lora_alpha": 1e300},
        {"lora_alpha": -1e300},
    ],
    ids=str,
)
async def test_a_configuration_that_names_no_ranks_is_refused(
    lab: Lab, config: dict[str, Any]
) -> None:
    refusal = await lab.refused("1", lab.write("1", **config))

    assert refusal.reason is Reason.CHECKPOINT_MALFORMED


@pytest.mark.parametrize(
    "config",
    [
        {"init_lora_weights": "Gaussian"},
        {"init_lora_weights": True},
        {"use_rslora": True},
        {"rank_pattern": {"embed": 2}, "alpha_pattern": {"embed": 0.5}},
        {"rank_pattern": {r"^model\.layers\.\d+\.(self_attn|mlp)\.[a-z]+_proj": 2}},
        {"bias": "none", "modules_to_save": None, "layer_replication": []},
    ],
    ids=lambda config: next(iter(config)),
)
async def test_what_the_engine_computes_as_it_was_trained_is_served(
    lab: Lab, config: dict[str, Any]
) -> None:
    await lab.put("1", lab.write("1", **config))

    assert lab.in_slots == ["tuned@1"]


async def test_an_adapter_outside_of_the_roots_is_refused(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_adapter(elsewhere, seed=1, modules=TINY_MODULES, rank=2)

    assert (await lab.refused("1", elsewhere)).reason is Reason.SOURCE_OUTSIDE_ROOTS


async def test_a_wrong_digest_is_refused(lab: Lab) -> None:
    refusal = await lab.refused("1", lab.write("1"), digest="sha256:" + "0" * 64)

    assert refusal.reason is Reason.DIGEST_MISMATCH


async def test_a_label_stands_for_one_adapter_only(lab: Lab) -> None:
    await lab.put("1", lab.write("1"))
    await lab.remove()
    refusal = await lab.refused("1", lab.write("other", seed=2))

    assert refusal.reason is Reason.VERSION_REUSED
    await lab.put("1", lab.write("other", seed=2), name="another")


async def test_metrics_name_the_versions_that_requests_get(lab: Lab) -> None:
    def value(name: str, **labels: str) -> float | None:
        return lab.bench.registry.get_sample_value(f"rlfleet_worker_{name}", labels)

    await lab.put("1", lab.write("1"))
    with lab.bench.agent.adapters.using("tuned"):
        await lab.put("2", lab.write("2", seed=2))
        assert value("adapter_info", adapter="tuned", version="2") == 1
        assert value("adapter_info", adapter="tuned", version="1") is None
        assert (value("adapter_slots"), value("adapter_slots_used")) == (2, 2)
    await soon(lambda: lab.in_slots == ["tuned@2"])
    await lab.remove()
    assert value("adapter_info", adapter="tuned", version="2") is None


async def test_two_runs_that_count_alike_are_two_versions_and_one_runs_version_is_one_set_of_bytes(
    lab: Lab,
) -> None:
    one, two = lab.write("run-7/step_40", seed=1), lab.write("run-8/step_40", seed=2)
    await lab.put("40", one, run_id="run-7")
    served = []
    for run_id in ("run-7", "run-8"):
        path = one if run_id == "run-7" else two
        await lab.put("40", path, run_id=run_id)
        (state,) = lab.bench.state.adapters
        assert (state.version, state.run_id) == ("40", run_id)
        served.append(state.digest)
    refusal = await lab.refused("40", lab.write("again", seed=3), run_id="run-8")

    assert len(set(served)) == 2
    assert refusal.reason is Reason.VERSION_REUSED
    failure = lab.bench.state.adapter_failure
    assert failure is not None
    assert (failure.version, failure.run_id) == ("40", "run-8")
    assert lab.bench.state.adapters[0].run_id == "run-8"


async def test_the_same_bytes_of_two_runs_are_put_as_two(lab: Lab) -> None:
    path = lab.write("shared", seed=1)
    numbers = []
    for run_id in ("run-7", "run-8"):
        await lab.put("40", path, run_id=run_id)
        numbers.append(set(lab.bench.engine.adapters))

    assert numbers[0].isdisjoint(numbers[1])
    assert lab.bench.state.adapters[0].run_id == "run-8"
