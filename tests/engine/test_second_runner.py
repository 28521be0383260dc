"""vLLM's second model runner, which is the default on GPUs, with the real vLLM for CPUs.

It needs Triton, and vLLM for CPUs has no compiler for it. Triton's interpreter runs its kernels here, behind a
fake of the one thing that vLLM asks before: a driver for CPUs.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.scripts import LOADS, output_of
from tests.support.environments import worker_python

from fleet_worker.engine.vllm_names import SECOND_RUNNER

pytestmark = pytest.mark.xdist_group("architectures")

_SCRIPT = (
    """
import json, os, sys, traceback, types
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
import triton.backends
class FakeDriver:
    @staticmethod
    def is_active():
        return True
triton.backends.backends["cpu"] = types.SimpleNamespace(driver=FakeDriver)
from pathlib import Path
import torch, transformers, vllm
from transformers import AutoModelForCausalLM
"""
    + LOADS
    + """
root = Path(sys.argv[1])
SAME = dict(vocab_size=512, bos_token_id=0, eos_token_id=2, pad_token_id=0)
SIZES = dict(SAME, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, head_dim=32)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
CONFIGURATIONS = {
    "dense": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=False),
    "recurrence": lambda: transformers.Mamba2Config(
        **SAME, hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=16, n_groups=1, expand=2),
    "recurrence and attention": lambda: transformers.Qwen3NextConfig(
        **SIZES, **EXPERTS, shared_expert_intermediate_size=64, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=128, linear_value_head_dim=128, layer_types=["linear_attention", "full_attention"]),
}

def write(config, folder):
    config.dtype = "bfloat16"
    for seed, name in ((1, "one"), (2, "other")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        config.architectures = [type(model).__name__]
        with torch.no_grad():
            for each in model.parameters():
                if each.ndim > 1:
                    each.normal_(0, 1.2 / each.shape[-1] ** 0.5)
        model.save_pretrained(folder / name)

def engine_on(folder):
    return vllm.LLM(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, dtype="bfloat16",
        kv_cache_memory_bytes=1 << 26, max_num_seqs=8,
        worker_extension_cls="fleet_worker.engine.extension.WorkerExtension")

def call(engine, method, **arguments):
    (answer,) = engine.collective_rpc(method, kwargs=arguments)
    return answer

def tokens(engine):
    engine.reset_prefix_cache()
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [5, 6, 7, 9]}, {"prompt_token_ids": [100, 3]}]
    return [list(each.outputs[0].token_ids) for each in engine.generate(prompts, sampling, use_tqdm=False)]

def check(engine):
    # Memory that no kernel writes has NaNs then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return call(engine, "rlfleet_probe")["error"]
    finally:
        torch.use_deterministic_algorithms(False)

def failing_check(engine):
    model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    hook = model.register_forward_pre_hook(lambda *given: 1 / 0)
    assert "ZeroDivisionError" in check(engine)
    hook.remove()

def held_tokens(engine, checked):
    sampling = vllm.SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, detokenize=False)
    for number in range(2):
        engine.llm_engine.add_request(f"{checked} {number}", {"prompt_token_ids": [5, 6, 7 + number]}, sampling)
    steps, ended = 0, {}
    while engine.llm_engine.has_unfinished_requests():
        for each in engine.llm_engine.step():
            ended[each.request_id[-1]] = list(each.outputs[0].token_ids)
        steps += 1
        if checked and steps == 5:
            check(engine)
            failing_check(engine)
    return ended

def seen(folder):
    engine = engine_on(folder / "one")
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    found = {"runner": [each.__module__ for each in type(runner).__mro__],
             "missing": call(engine, "rlfleet_missing_names"),
             "one": tokens(engine), "checks": [check(engine), check(engine)],
             "held": [held_tokens(engine, checked) for checked in (False, True)],
             "load": call(engine, "rlfleet_load", **load_of(folder / "other"))["error"], "other": tokens(engine),
             "check": check(engine)}
    with torch.no_grad():
        [each for each in runner.get_model().parameters() if each.ndim < 2][-1].fill_(float("nan"))
    return found | {"broken": check(engine)}

def in_a_process_of_its_own(work):
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException:
            answer = {"died": traceback.format_exc()}
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else {"died": "without a word"}

found = {}
for name, made in CONFIGURATIONS.items():
    folder = root / name
    write(made(), folder)
    found[name] = in_a_process_of_its_own(lambda: seen(folder))
    if "died" not in found[name]:
        found[name]["started"] = in_a_process_of_its_own(lambda: tokens(engine_on(folder / "other")))
print("result", json.dumps(found))
"""
)
MODELS = ("dense", "recurrence", "recurrence and attention")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # Triton has to be prepared before vLLM is imported.
    folder = str(tmp_path_factory.mktemp("runner"))
    return dict(output_of(_SCRIPT, folder, python=worker_python()))


def made(found: dict[str, Any], name: str) -> dict[str, Any]:
    for answer in (found[name], found[name].get("started")):
        assert not isinstance(answer, dict) or "died" not in answer, answer["died"]
    return dict(found[name])


@pytest.mark.parametrize("name", MODELS)
def test_the_second_runner_runs_here_and_has_every_name(found: dict[str, Any], name: str) -> None:
    seen = made(found, name)

    assert SECOND_RUNNER in seen["runner"]
    assert seen["missing"] == []


@pytest.mark.parametrize("name", MODELS)
def test_a_load_gives_the_tokens_of_a_start(found: dict[str, Any], name: str) -> None:
    seen = made(found, name)

    assert seen["load"] is None
    assert seen["one"] != seen["other"] == seen["started"]


@pytest.mark.parametrize("name", MODELS)
def test_the_check_of_a_load_reads_nothing_that_no_kernel_wrote(
    found: dict[str, Any], name: str
) -> None:
    seen = made(found, name)

    assert [*seen["checks"], seen["check"]] == [None] * 3
    assert seen["broken"] is not None


@pytest.mark.parametrize("name", MODELS)
def test_the_check_of_a_load_leaves_held_requests_as_they_are(
    found: dict[str, Any], name: str
) -> None:
    undisturbed, checked = made(found, name)["held"]

    assert len(undisturbed) == 2
    assert checked == undisturbed
