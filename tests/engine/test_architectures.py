"""A load gives tokens as a start on the same files does, in architectures whose layers derive values.

vLLM packs experts, multiplies weights into others and keeps views, some of them only at the first load. The
checkpoints are tiny and random. Each engine has a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engine.scripts import output_of

pytestmark = pytest.mark.xdist_group("architectures")

_SCRIPT = """
import json, os, sys
from pathlib import Path
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import torch, transformers, vllm
from transformers import AutoModelForCausalLM

root = Path(sys.argv[1])
SAME = dict(vocab_size=512, bos_token_id=0, eos_token_id=2, pad_token_id=0)
SIZES = dict(SAME, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=64)
CONFIGURATIONS = {
    "experts": transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=32, num_experts=4, tie_word_embeddings=False),
    "latent attention": transformers.DeepseekV3Config(
        **SIZES | dict(num_key_value_heads=4), **EXPERTS, kv_lora_rank=512, q_lora_rank=32, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=4, first_k_dense_replace=1, n_shared_experts=1, n_group=1,
        topk_group=1),
    "copies past the loaders": transformers.GptOssConfig(
        **SIZES, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=128),
    "convolutions": transformers.Mamba2Config(
        **SAME, hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=16, n_groups=1, expand=2),
    "recurrence and attention": transformers.Qwen3NextConfig(
        **SIZES, **EXPERTS, head_dim=32, num_experts=4, shared_expert_intermediate_size=64, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
        layer_types=["linear_attention", "full_attention"]),
}

def write(config, folder):
    config.dtype = "bfloat16"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.architectures = [type(model).__name__]
    if config.model_type == "deepseek_v3":
        config.topk_method = "noaux_tc"
    for seed, name in ((1, "one"), (2, "other")):
        generator = torch.Generator().manual_seed(seed)
        for key, each in sorted([*model.named_parameters(), *model.named_buffers()]):
            if each.is_floating_point() and "rotary" not in key:
                drawn = torch.randn(each.shape, generator=generator)
                scale = 0.2 if each.ndim < 2 else 0.4 if "conv1d" in key else 1.2 / each.shape[-1] ** 0.5
                start = each.detach().float() if each.ndim < 2 and seed == 1 else torch.ones(each.shape) * (each.ndim < 2) * 0.5
                with torch.no_grad():
                    each.copy_((start + drawn * scale).to(each.dtype))
        model.save_pretrained(folder / name)

def engine_on(folder):
    return vllm.LLM(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, dtype="bfloat16",
        kv_cache_memory_bytes=1 << 26, max_num_seqs=4,
        worker_extension_cls="fleet_worker.engine.extension.WorkerExtension")

def tokens(engine):
    engine.reset_prefix_cache()
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [5, 6, 7, 9]}, {"prompt_token_ids": [100, 3]}]
    return [list(each.outputs[0].token_ids) for each in engine.generate(prompts, sampling, use_tqdm=False)]

def load(engine, folder, started=False):
    files = [{"path": str(folder / "model.safetensors"), "in_memory": False}]
    (answer,) = engine.collective_rpc("rlfleet_load", kwargs={"files": files, "copies": {}, "started": started})
    return answer["error"]

def check(engine):
    # Memory that no kernel writes has NaNs then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        (answer,) = engine.collective_rpc("rlfleet_probe")
    finally:
        torch.use_deterministic_algorithms(False)
    return answer["error"]

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
    return ended

def swapped(folder):
    engine = engine_on(folder / "one")
    first = tokens(engine)
    error = load(engine, folder / "other")
    second = None if error else tokens(engine)
    again = load(engine, folder / "one", started=bool(error))  # then the worker recovers
    third = None if again else tokens(engine)
    checks = [check(engine), check(engine)]
    held = [held_tokens(engine, checked) for checked in (False, True)]
    return {"one": first, "error": error, "other": second, "one again": third, "checks": checks, "held": held}

def in_a_process_of_its_own(work, folder):
    read, write_end = os.pipe()
    if os.fork() == 0:
        os.write(write_end, json.dumps(work(folder)).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as answer:
        return json.loads(answer.read() or "null")

found = {}
for name, config in CONFIGURATIONS.items():
    write(config, root / name)
    found[name] = in_a_process_of_its_own(swapped, root / name)
    if found[name] and not found[name]["error"]:
        found[name]["started"] = in_a_process_of_its_own(lambda folder: tokens(engine_on(folder / "other")), root / name)
print("result", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("architectures")
    return dict(output_of(_SCRIPT, str(folder)))


SWAPPED = ["experts", "latent attention", "convolutions", "recurrence and attention"]


@pytest.mark.parametrize("name", SWAPPED)
def test_a_load_gives_the_tokens_of_a_start(found: dict[str, Any], name: str) -> None:
    made = found[name]

    assert made["error"] is None
    assert made["other"] == made["started"]
    assert made["one again"] == made["one"] != made["other"]


@pytest.mark.parametrize("name", SWAPPED)
def test_the_check_of_a_load_reads_nothing_that_no_kernel_wrote(
    found: dict[str, Any], name: str
) -> None:
    assert found[name]["checks"] == [None, None]


@pytest.mark.parametrize("name", SWAPPED)
def test_the_check_of_a_load_leaves_held_requests_as_they_are(
    found: dict[str, Any], name: str
) -> None:
    undisturbed, checked = found[name]["held"]

    assert len(undisturbed) == 2
    assert checked == undisturbed


def test_a_model_that_copies_weights_past_its_loaders_keeps_those_of_its_start(
    found: dict[str, Any],
) -> None:
    made = found["copies past the loaders"]

    assert "such as model.layers.0.attn.sinks" in made["error"]
    assert made["one again"] == made["one"]
