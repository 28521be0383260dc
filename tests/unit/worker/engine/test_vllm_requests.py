"""The worker's own requests to vLLM: canary prompts, LoRA adapters, transfers, aborts, settings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install
from tests.support.fake_vllm_client import MAX_LENGTH, FakeVllmClient
from tests.support.worker_harness import failing, refused

from fleet_worker.engine.records import EngineAdapter
from fleet_worker.engine.vllm import VllmEngine
from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import EngineInfo, Reason

ADAPTER = EngineAdapter("sql@3@3fa9c1d04b2e", 1007, "/private/3")


@dataclass
class FakeParameters:
    """vLLM's `SamplingParams`."""

    temperature: float
    output_kind: str
    detokenize: bool
    max_tokens: int
    prompt_logprobs: int | None = None


@dataclass
class FakeLoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class FakeTransferRequest:
    init_info: Any = None
    update_info: Any = None


@pytest.fixture(autouse=True)
def _fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(FINAL_ONLY="final only")
    install(
        monkeypatch,
        {
            "vllm.sampling_params": {"SamplingParams": FakeParameters, "RequestOutputKind": kinds},
            "vllm.lora.request": {"LoRARequest": FakeLoRARequest},
            "vllm.distributed.weight_transfer.base": {
                "WeightTransferInitRequest": FakeTransferRequest,
                "WeightTransferUpdateRequest": FakeTransferRequest,
            },
        },
    )


@pytest.fixture
def client() -> FakeVllmClient:
    seen = {"compared": 4, "covered": 8, "changed": 2.0, "same": False, "why_not": ""}
    made = FakeVllmClient()
    made.answers = {"rlfleet_effect": [seen], "rlfleet_layers_without_all_parts": [[]]}
    return made


@pytest.fixture
def models() -> Any:
    return SimpleNamespace(lora_requests={})


@pytest.fixture
def engine(client: FakeVllmClient, models: Any) -> VllmEngine:
    return VllmEngine(client, EngineInfo(version="0.32.0", model="policy"), models)


# --- probes ---------------------------------------------------------------------------------------


async def test_a_sample_is_greedy_and_returns_the_ids_of_prompt_and_continuation(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    assert await engine.sample("ab", 3) == ([97, 98], [0, 1, 2])
    ((prompt, parameters, _),) = client.prompts
    assert prompt["prompt_token_ids"] == [97, 98]
    assert (parameters.temperature, parameters.max_tokens) == (0.0, 3)


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"),
    [(1, 1, True), (MAX_LENGTH - 9, 8, True), (MAX_LENGTH - 8, 8, False), (0, 8, False)],
)
async def test_a_prompt_must_leave_room_for_its_continuation_and_one_more_token(
    engine: VllmEngine, client: FakeVllmClient, length: int, max_tokens: int, fits: bool
) -> None:
    if fits:
        ids, made = await engine.sample("x" * length, max_tokens)
        assert len(ids) + len(made) + 1 <= MAX_LENGTH, "scored, it is a prompt that needs a token"
        return
    refusal = await refused(engine.sample("x" * length, max_tokens))
    assert refusal.reason is Reason.BAD_REQUEST
    assert "xxx" not in refusal.message, "a message holds no prompt"
    assert client.prompts == []


async def test_each_canary_prompt_has_its_own_request_id_and_cache(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    await asyncio.gather(*(engine.sample("same", 2) for _ in range(4)))

    assert len({prompt["cache_salt"] for prompt, _, _ in client.prompts}) == 4
    assert len({request for _, _, request in client.prompts}) == 4


async def test_scoring_returns_only_the_requested_tokens(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    positions = await engine.score([10, 20, 30], first=1)

    assert [(each.token, each.logprob) for each in positions] == [(20, -0.2), (30, -0.3)]
    assert client.prompts[0][1].max_tokens == 1, "an engine always makes one"


async def test_the_first_token_of_a_text_has_no_log_probability(engine: VllmEngine) -> None:
    (first, *_) = await engine.score([10, 20], first=0)

    assert first.token == 10
    assert math.isnan(first.logprob)


@pytest.mark.parametrize(("allowed", "asked"), [(-1, 20), (0, 0), (5, 5), (20, 20), (500, 20)])
async def test_the_number_of_log_probabilities_respects_the_engines_limit(
    engine: VllmEngine, client: FakeVllmClient, allowed: int, asked: int
) -> None:
    client.max_logprobs = allowed
    await engine.score([10, 20], first=1)

    assert client.prompts[0][1].prompt_logprobs == asked


@pytest.mark.parametrize(
    "ask", [lambda engine: engine.sample("ab", 2), lambda engine: engine.score([1, 2], first=1)]
)
async def test_a_failed_canary_prompt_left_the_weights_unchanged(
    engine: VllmEngine, client: FakeVllmClient, ask: Callable[[VllmEngine], Awaitable[Any]]
) -> None:
    client.answers["generate"] = RuntimeError("out of blocks")
    failure = await failing(ask(engine))

    assert failure.touched is False
    assert "out of blocks" in failure.message


# --- adapters -------------------------------------------------------------------------------------


async def test_an_adapter_is_added_under_its_name_number_and_private_directory(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    await engine.add_adapter(ADAPTER)
    given = {"name": "sql@3@3fa9c1d04b2e", "number": 1007, "path": "/private/3"}
    assert client.calls[0] == ("rlfleet_add_adapter", given)
    await engine.remove_adapter(ADAPTER)

    assert client.slots == set()


async def test_an_adapter_that_the_engine_does_not_list_is_a_failure(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.takes = False
    with pytest.raises(EngineFailure, match="adapter sql at version 3"):
        await engine.add_adapter(ADAPTER)
    client.slots.add(ADAPTER.number)
    client.gives = False
    with pytest.raises(EngineFailure, match="adapter sql at version 3"):
        await engine.remove_adapter(ADAPTER)


async def test_an_adapter_with_modules_that_no_process_applies_is_a_failure(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    first, second = "layers.0.q_proj", "layers.1.q_proj"
    client.dropped = ["visual.1", "visual.0", first], ["visual.0", "visual.1", second]
    with pytest.raises(EngineFailure, match="2 modules of adapter sql at version 3") as failed:
        await engine.add_adapter(ADAPTER)

    assert failed.value.touched is False
    assert "visual.0" in failed.value.message
    assert "--enable-tower-connector-lora" in failed.value.message
    assert "--lora-target-modules" in failed.value.message


async def test_a_stage_of_a_pipeline_need_not_apply_the_modules_of_other_stages(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    client.dropped = ["layers.1.q_proj"], ["layers.0.q_proj"]
    await engine.add_adapter(ADAPTER)

    assert client.slots == {ADAPTER.number}


def test_the_names_of_adapters_do_not_reveal_their_paths(engine: VllmEngine, models: Any) -> None:
    engine.serve_adapter("sql", "/weights/sql/step_3")
    assert models.lora_requests["sql"].lora_path == "/weights/sql/step_3"
    engine.serve_adapter("sql", None)
    engine.serve_adapter("sql", None)

    assert models.lora_requests == {}


async def test_the_list_of_models_is_vllms(engine: VllmEngine, models: Any) -> None:
    async def listed() -> Any:
        cards = [SimpleNamespace(model_dump=lambda name=name: {"id": name}) for name in "ab"]
        return SimpleNamespace(data=cards)

    models.show_available_models = listed

    assert await engine.models() == [{"id": "a"}, {"id": "b"}]


# --- transfers, sleep, aborts ---------------------------------------------------------------------

CALLS: Sequence[tuple[str, Callable[[VllmEngine], Awaitable[Any]], bool]] = (
    ("init_weight_transfer_engine", lambda e: e.join_transfer({"world_size": 2}), False),
    ("shutdown_weight_transfer_engine", lambda e: e.leave_transfer(), False),
    ("rlfleet_start_transfer", lambda e: e.begin_transfer(), True),
    ("update_weights", lambda e: e.receive({"names": []}), True),
    ("rlfleet_finish_transfer", lambda e: e.end_transfer(), True),
    ("rlfleet_cancel_transfer", lambda e: e.cancel_transfer(), True),
    ("rlfleet_add_adapter", lambda e: e.add_adapter(ADAPTER), False),
    ("sleep", lambda e: e.sleep(1), False),
    ("wake_up", lambda e: e.wake(None), False),
    ("reset_prefix_cache", lambda e: e.drop_prefixes(running=True), False),
    ("abort", lambda e: e.abort(["a"]), False),
    ("abort", lambda e: e.abort(None), False),
    ("resume_generation", lambda e: e.resume(), False),
)


@pytest.mark.parametrize(("name", "call", "touches"), CALLS)
async def test_a_failed_call_reports_whether_the_weights_may_have_changed(
    engine: VllmEngine,
    client: FakeVllmClient,
    name: str,
    call: Callable[[VllmEngine], Awaitable[Any]],
    touches: bool,
) -> None:
    client.answers[name] = ConnectionError("the engine is gone")
    failure = await failing(call(engine))

    assert failure.touched is touches
    assert failure.message == "ConnectionError: the engine is gone"


@pytest.mark.parametrize(
    ("given", "passed"),
    [({"names": ["a"]}, {"names": ["a"]}), (({"a": 1}, {"a": 2}), [{"a": 1}, {"a": 2}])],
    ids=["one for all processes", "one a process"],
)
async def test_a_trainers_transfer_parameters_are_passed_on_unchanged(
    engine: VllmEngine, client: FakeVllmClient, given: Any, passed: Any
) -> None:
    await engine.receive(given)

    assert client.calls == [("update_weights", {"update_info": passed})]


async def test_the_end_of_a_transfer_sets_no_label(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    await engine.begin_transfer()
    await engine.end_transfer()

    assert "update_weight_version" not in [name for name, _ in client.calls]


@pytest.mark.parametrize(("tags", "asked"), [(None, None), (("weights",), ["weights"])])
async def test_parts_of_an_engine_can_be_woken(
    engine: VllmEngine, client: FakeVllmClient, tags: Sequence[str] | None, asked: list[str] | None
) -> None:
    client.answers["wake_up"] = True
    assert await engine.wake(tags) is True

    assert client.calls == [("wake_up", (asked,))]


async def test_aborting_all_ends_choices_and_their_parent_requests(
    engine: VllmEngine, client: FakeVllmClient
) -> None:
    assert await engine.abort(None) == 3
    assert await engine.abort(["x", "y"]) == 2
    (_, everything), (_, named) = client.calls[0], client.calls[1]
    assert everything == {"internal": True}
    assert named == (["x", "y"],)


async def test_the_description_of_the_engine_has_no_paths_or_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="/weights/secret",
            dtype="torch.bfloat16",
            max_model_len=64,
            quantization=None,
            logprobs_mode="raw_logprobs",
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            world_size=2,
            data_parallel_master_ip="10.0.0.7",
        ),
        cache_config=SimpleNamespace(block_size=32),
        weight_transfer_config=SimpleNamespace(backend="nccl"),
        lora_config=None,
    )
    engine = VllmEngine(
        SimpleNamespace(vllm_config=config), EngineInfo(version="0", model="policy")
    )
    reported = engine.describe()

    assert reported["model_config"]["served_model_name"] == "policy"
    assert reported["parallel_config"]["world_size"] == 2
    assert (reported["weight_transfer_config"], reported["lora_config"]) == (
        {"backend": "nccl"},
        None,
    )
    assert "secret" not in str(reported)
    assert "10.0.0.7" not in str(reported)
    config.lora_config = SimpleNamespace(max_loras=2, max_lora_rank=8)
    assert engine.describe()["lora_config"] == {"max_loras": 2, "max_lora_rank": 8}
