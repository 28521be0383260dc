"""A transfer that stops inside a fused layer leaves nothing behind, with real vLLM.

The model is one whose `load_weights` reads its parameters once, as those of DeepSeek, gpt-oss and Llama 4
do. Its layers keep their weights as on GPUs, or in the CPU kernels' own format.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.scripts import LOADS, output_of

_SCRIPT = """
import json, os, sys
from pathlib import Path
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
import vllm.model_executor.layers.utils as layers

folder, layout = Path(sys.argv[1]), sys.argv[2]
H, I, V, HEADS, KV, SIZE = 128, 128, 512, 4, 2, 32
(folder / "config.json").write_text(json.dumps(dict(
    architectures=["MiniCPMForCausalLM"], model_type="llama", hidden_size=H, intermediate_size=I,
    num_hidden_layers=2, vocab_size=V, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=SIZE,
    max_position_embeddings=256, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False,
    torch_dtype="bfloat16", scale_emb=1.0, scale_depth=1.0, dim_model_base=H, rope_theta=10000.0)))

def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    def drawn(*shape):
        return (torch.randn(*shape, generator=generator) * 0.1).to(torch.bfloat16)
    def ones():
        return torch.ones(H, dtype=torch.bfloat16)
    found = {"model.embed_tokens.weight": drawn(V, H), "model.norm.weight": ones(), "lm_head.weight": drawn(V, H)}
    for number in range(2):
        at = f"model.layers.{number}."
        found |= {at + "self_attn.q_proj.weight": drawn(HEADS * SIZE, H), at + "self_attn.k_proj.weight": drawn(KV * SIZE, H),
                  at + "self_attn.v_proj.weight": drawn(KV * SIZE, H), at + "self_attn.o_proj.weight": drawn(H, HEADS * SIZE),
                  at + "mlp.gate_proj.weight": drawn(I, H), at + "mlp.up_proj.weight": drawn(I, H),
                  at + "mlp.down_proj.weight": drawn(H, I), at + "input_layernorm.weight": ones(),
                  at + "post_attention_layernorm.weight": ones()}
    return found

old, new = weights(1), weights(2)
save_file(old, folder / "model.safetensors")
if layout == "plain":
    def plain(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear
    layers.dispatch_cpu_unquantized_gemm = plain
engine = LLM(model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128, dtype="bfloat16",
             kv_cache_memory_bytes=1 << 26, block_size=32, max_num_seqs=4,
             worker_extension_cls="fleet_worker.engine.extension.WorkerExtension")
worker = engine.llm_engine.model_executor.driver_worker.worker
model = worker.model_runner.get_model()
from vllm.model_executor.model_loader.reload.layerwise import initialize_layerwise_reload, finalize_layerwise_reload

class WithoutWire:  # what vLLM's engines for transfers do, without the wire
    def reset_weight_update_target(self): pass
    def shutdown(self): pass
worker.weight_transfer_engine = WithoutWire()

def tokens():
    assert worker.rlfleet_probe()["ok"]
    engine.reset_prefix_cache()
    sampling = SamplingParams(max_tokens=10, temperature=0, detokenize=False)
    return list(engine.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)[0].outputs[0].token_ids)

def begin():
    initialize_layerwise_reload(model)

def receive_a_part():
    model.load_weights([(name, each) for name, each in new.items() if name.endswith("gate_proj.weight")])

def receive_all():
    model.load_weights(list(new.items()))
    finalize_layerwise_reload(model, worker.model_runner.model_config)

found = {}
with torch.inference_mode():
    found["old"] = tokens()
    begin(); receive_all(); found["new"] = tokens()
    assert worker.rlfleet_load(**load_of(folder))["ok"]
    begin(); receive_a_part()
    worker.rlfleet_cancel_transfer()
    begin(); receive_all(); found["new, started again"] = tokens()
    assert worker.rlfleet_load(**load_of(folder))["ok"]
    begin(); receive_a_part()
    worker.rlfleet_cancel_transfer()
    found["recovery"] = worker.rlfleet_load(**load_of(folder))["error"]
    found["old, after a recovery"] = tokens()
    begin(); receive_a_part()
    found["recovery without a cancel"] = worker.rlfleet_load(**load_of(folder))["error"]
    found["old, after a recovery without a cancel"] = tokens()
def lacking():
    return worker.rlfleet_call("rlfleet_layers_without_all_parts", {})["result"]

begin()
found["before"] = lacking()
model.load_weights([(name, each) for name, each in new.items() if not name.endswith("k_proj.weight")])
found["without k"] = lacking()
assert worker.rlfleet_load(**load_of(folder))["ok"]
begin()
model.load_weights([(name, each) for name, each in new.items() if "layers.0.self_attn" not in name])
found["without a whole layer"] = lacking()
model.load_weights([(name, each) for name, each in new.items() if "layers.0.self_attn" in name])
found["with all"] = lacking()
finalize_layerwise_reload(model, worker.model_runner.model_config)
print("result", json.dumps(found))
"""


@pytest.mark.parametrize("layout", ["plain", pytest.param("packed", marks=pytest.mark.long)])
def test_a_transfer_that_stops_inside_a_fused_layer_leaves_no_part_behind(
    tmp_path: Path, layout: str
) -> None:
    found = output_of(LOADS + _SCRIPT, str(tmp_path), layout)

    assert found["recovery"] is None
    assert found["recovery without a cancel"] is None
    assert found["old"] != found["new"]
    assert found["new, started again"] == found["new"]
    assert found["old, after a recovery"] == found["old"]
    assert found["old, after a recovery without a cancel"] == found["old"]
    qkv = [f"model.layers.{number}.self_attn.qkv_proj" for number in range(2)]
    assert found["without k"] == qkv
    assert found["before"] == found["without a whole layer"] == found["with all"] == []
