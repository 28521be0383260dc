"""A load gives tokens as a start on the same files does, in architectures whose layers derive values.

vLLM packs experts, multiplies weights into others and keeps views, some of them only at the first load. The
checkpoints are tiny and random. Each engine has a process of its own, which chooses its kernels alike on every
processor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kernels import FORCE, LACKS
from tests.engine.scripts import LOADS, output_of

pytestmark = pytest.mark.xdist_group("architectures")

_SCRIPT = (
    FORCE
    + LOADS
    + """
import json, traceback
from pathlib import Path
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import transformers, vllm
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

FILE = "model.safetensors"
root = Path(sys.argv[1])
SAME = dict(vocab_size=512, bos_token_id=0, eos_token_id=2, pad_token_id=0)
SIZES = dict(SAME, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512)
EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=64)
PADDED = EXPERTS | dict(moe_intermediate_size=48)  # vLLM's kernels take multiples of 32
CONFIGURATIONS = {
    "dense": transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=False),
    "experts": transformers.Qwen3MoeConfig(**SIZES, **PADDED, head_dim=32, num_experts=4, tie_word_embeddings=False),
    "latent attention": transformers.DeepseekV3Config(
        **SIZES | dict(num_key_value_heads=4), **EXPERTS, kv_lora_rank=512, q_lora_rank=32, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=4, first_k_dense_replace=1, n_shared_experts=1, n_group=1,
        topk_group=1),
    "copies past the loaders": transformers.GptOssConfig(
        **SIZES, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=128),
    "convolutions": transformers.Mamba2Config(
        **SAME, hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=16, n_groups=1, expand=2),
    "recurrence and attention": transformers.Qwen3NextConfig(
        **SIZES, **PADDED, head_dim=32, num_experts=4, shared_expert_intermediate_size=64, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
        layer_types=["linear_attention", "full_attention"]),
    "Llama": transformers.LlamaConfig(**SIZES, head_dim=32, tie_word_embeddings=False),
    "Mistral": transformers.MistralConfig(**SIZES, head_dim=32, tie_word_embeddings=False),
    "Gemma 3": transformers.Gemma3TextConfig(**SIZES, head_dim=32, sliding_window=64),
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
    write_wide(folder / "other" / FILE, folder / "wide")

def write_wide(file, folder):
    # In float32, with digits that bfloat16 has no place for.
    wide = {}
    for key, each in load_file(file).items():
        is_brain = each.dtype == torch.bfloat16
        wide[key] = each.float() * (1 + 2.0**-12) if is_brain else each
        assert not is_brain or torch.equal(wide[key].bfloat16(), each)
    folder.mkdir()
    save_file(wide, folder / FILE)
    (folder / "config.json").write_bytes((file.parent / "config.json").read_bytes())

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

def load(engine, folder, started=False, casts=None):
    (answer,) = engine.collective_rpc("rlfleet_load", kwargs=load_of(folder, started, casts))
    return answer["error"]

def loaded_wide(engine, folder):
    # The tokens, and a checksum of the parameters, after a load of the same weights in float32.
    brains = {key: "BF16" for key, each in load_file(folder / "other" / FILE).items() if each.dtype == torch.bfloat16}
    error = load(engine, folder / "wide", casts=brains)
    return error or [tokens(engine), engine.collective_rpc("rlfleet_checksum")]

def check(engine):
    # Memory that no kernel writes has NaNs then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        (answer,) = engine.collective_rpc("rlfleet_probe")
    finally:
        torch.use_deterministic_algorithms(False)
    return answer["error"]

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

class FakeWire:  # vLLM's engine for transfers, without the wire
    def __init__(self, worker):
        self.model, self.config = worker.model_runner.get_model(), worker.model_runner.model_config
    def start_weight_update(self):
        initialize_layerwise_reload(self.model)
    def finish_weight_update(self):
        finalize_layerwise_reload(self.model, self.config)
    def reset_weight_update_target(self):
        pass
    shutdown = reset_weight_update_target

def update(engine, folder, wanted):
    worker = engine.llm_engine.model_executor.driver_worker.worker
    worker.weight_transfer_engine = FakeWire(worker)
    worker.rlfleet_start_transfer()
    tensors = load_file(folder / FILE)
    with torch.inference_mode():
        worker.model_runner.get_model().load_weights([(n, each) for n, each in tensors.items() if wanted(n)])
        worker.rlfleet_finish_transfer()

def in_two_updates(engine, folder):
    update(engine, folder, lambda name: "kv_b_proj" not in name)
    between = tokens(engine)
    update(engine, folder, lambda name: "kv_b_proj" in name)
    return between, tokens(engine)

def swapped(folder):
    engine = engine_on(folder / "one")
    model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    freed = [name for name, each in model.named_parameters() if not each.numel()]
    first = tokens(engine)
    error = load(engine, folder / "other")
    second = None if error else tokens(engine)
    narrow = None if error else [second, engine.collective_rpc("rlfleet_checksum")]
    wide = None if error else loaded_wide(engine, folder)
    again = load(engine, folder / "one", started=bool(error))  # then the worker recovers
    assert again is None, (error, again)
    third = tokens(engine)
    checks = [check(engine), check(engine)]
    held = [held_tokens(engine, checked) for checked in (False, True)]
    updates = in_two_updates(engine, folder / "other") if not error else None
    return {"one": first, "error": error, "other": second, "one again": third, "checks": checks, "held": held,
            "updates": updates, "freed": freed, "in bfloat16": narrow, "in float32": wide}

def in_a_process_of_its_own(kernel, work):
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            force(kernel)
            answer = work()
        except BaseException:
            answer = {"died": traceback.format_exc()}
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else {"died": f"the process ended with {os.waitstatus_to_exitcode(status)}"}

found = {}
for name, (kernel, architecture) in json.loads(sys.argv[2]).items():
    if not has(kernel):
        found[name] = None
        continue
    folder = root / architecture
    if not folder.exists():
        write(CONFIGURATIONS[architecture], folder)
    found[name] = in_a_process_of_its_own(kernel, lambda: swapped(folder))
    if not found[name].get("error", "died"):
        found[name]["started"] = in_a_process_of_its_own(kernel, lambda: tokens(engine_on(folder / "other")))
print("result", json.dumps(found))
"""
)

CASES = {
    "dense": ("oneDNN", "dense"),
    "experts": ("AMX", "experts"),
    "latent attention": ("oneDNN", "latent attention"),
    "latent attention with AMX": ("AMX", "latent attention"),
    "copies past the loaders": ("oneDNN", "copies past the loaders"),
    "convolutions": ("oneDNN", "convolutions"),
    "recurrence and attention": ("oneDNN", "recurrence and attention"),
}
"""Kernel and architecture of each case."""
FAMILIES = ("Llama", "Mistral", "Gemma 3")
"""Dense architectures, which have the layers of the dense case and loaders of their own."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("architectures")
    return dict(output_of(_SCRIPT, str(folder), json.dumps(CASES)))


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("families")
    cases = {request.param: ("oneDNN", request.param)}
    return made(dict(output_of(_SCRIPT, str(folder), json.dumps(cases))), request.param)


def made(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The findings of the processes of a case."""
    if found[name] is None:
        pytest.skip(LACKS)
    for answer in (found[name], found[name].get("started")):
        assert not isinstance(answer, dict) or "died" not in answer, answer["died"]
    return dict(found[name])


SWAPPED = [name for name in CASES if name != "copies past the loaders"]
LATENT = [name for name in CASES if name.startswith("latent")]


@pytest.mark.parametrize("name", SWAPPED)
def test_a_load_gives_the_tokens_of_a_start(found: dict[str, Any], name: str) -> None:
    swapped = made(found, name)

    assert swapped["error"] is None
    assert swapped["other"] == swapped["started"]
    assert swapped["one again"] == swapped["one"] != swapped["other"]


@pytest.mark.long
def test_a_load_gives_the_tokens_of_a_start_in_other_dense_architectures(
    family: dict[str, Any],
) -> None:
    assert family["error"] is None
    assert family["other"] == family["started"]
    assert family["one again"] == family["one"] != family["other"]
    assert family["in float32"] == family["in bfloat16"]
    assert family["checks"] == [None, None]


@pytest.mark.parametrize("name", SWAPPED)
def test_an_update_keeps_the_layers_that_it_leaves_out(found: dict[str, Any], name: str) -> None:
    swapped = made(found, name)

    assert swapped["updates"][1] == swapped["started"]


@pytest.mark.parametrize("name", LATENT)
def test_updates_that_leave_out_the_weight_that_attention_packs_add_up(
    found: dict[str, Any], name: str
) -> None:
    swapped = made(found, name)
    between, _ = swapped["updates"]

    packs = any("kv_b_proj" in name for name in swapped["freed"])
    assert packs == (name == "latent attention with AMX")
    assert swapped["one"] != between != swapped["other"]


@pytest.mark.parametrize("name", SWAPPED)
def test_weights_in_float32_are_those_of_the_same_weights_rounded(
    found: dict[str, Any], name: str
) -> None:
    """Some loaders compute with what they get. They must get what a file in bfloat16 would give them."""
    swapped = made(found, name)

    assert swapped["in float32"] == swapped["in bfloat16"]


@pytest.mark.parametrize("name", SWAPPED)
def test_the_check_of_a_load_reads_nothing_that_no_kernel_wrote(
    found: dict[str, Any], name: str
) -> None:
    assert made(found, name)["checks"] == [None, None]


@pytest.mark.parametrize("name", SWAPPED)
def test_the_check_of_a_load_leaves_held_requests_as_they_are(
    found: dict[str, Any], name: str
) -> None:
    undisturbed, checked = made(found, name)["held"]

    assert len(undisturbed) == 2
    assert checked == undisturbed


def test_the_page_of_the_engine_names_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "engine.md").read_text()

    assert [name for name in FAMILIES if name not in page] == []


def test_a_model_that_copies_weights_past_its_loaders_keeps_those_of_its_start(
    found: dict[str, Any],
) -> None:
    swapped = made(found, "copies past the loaders")

    assert "such as model.layers.0.attn.sinks" in swapped["error"]
    assert swapped["one again"] == swapped["one"]
