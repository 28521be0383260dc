"""Loads in place with the real vLLM: bit for bit the weights of a full load, or a full load.

vLLM packs weights for CPUs, and has nothing to write single elements into then. So the engines here keep weights
as checkpoints have them (`plain`), which is what they do on GPUs. Most of them are only vLLM's worker with the model:
all parameters are compared, bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kernels import FORCE
from tests.engine.scripts import output_of

pytestmark = pytest.mark.xdist_group("architectures")

_SCRIPT = """
import json, os, sys, time
from contextlib import ExitStack
from pathlib import Path
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
import numpy as np
import torch, transformers, vllm
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.engine import in_place

FILE, FORCE = "model.safetensors", __FORCE__
root, architecture = Path(sys.argv[1]), sys.argv[2]
# Each process of the engine imports the extension before it makes the layers.
lines = [FORCE, f"force({sys.argv[3]!r})", "from fleet_worker.engine.extension import WorkerExtension",
         "class Extension(WorkerExtension):", "    pass"]
(root / "forced_extension.py").write_text(chr(10).join(lines))
os.environ["PYTHONPATH"] += ":" + str(root)
sys.path.append(str(root))
SIZES = dict(vocab_size=512, bos_token_id=0, eos_token_id=2, pad_token_id=0, hidden_size=64, intermediate_size=128,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, head_dim=32)
CONFIGURATIONS = {
    "Qwen3": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=False),
    "tied": lambda: transformers.Qwen3Config(**SIZES, tie_word_embeddings=True),
    "Qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=False),
    "Llama": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "Mistral": lambda: transformers.MistralConfig(**SIZES, tie_word_embeddings=False),
    "Gemma 3": lambda: transformers.Gemma3TextConfig(**SIZES, sliding_window=64),
    "experts": lambda: transformers.Qwen3MoeConfig(
        **SIZES, num_experts_per_tok=2, moe_intermediate_size=64, num_experts=4, tie_word_embeddings=False),
}
generator = np.random.default_rng(82)

def write_first(folder):
    config = CONFIGURATIONS[architecture]()
    config.dtype = "bfloat16"
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.architectures = [type(model).__name__]
    model.save_pretrained(folder)

def changed(tensors, share=0.01):
    # Of each tensor some elements are others, at least one.
    found = {}
    for name, tensor in tensors.items():
        bits = tensor.contiguous().clone().view(-1)
        where = torch.from_numpy(generator.random(len(bits)) < share)
        where[int(generator.integers(len(bits)))] = True
        bits[where] = torch.from_numpy(generator.normal(size=int(where.sum())).astype("float32")).to(bits.dtype) * 0.3
        found[name] = bits.view(tensor.shape)
    return found

def sealed(tensors):
    # The bytes of a file in sealed memory, as the stager leaves them, and their path.
    save_file(tensors, root / "scratch")
    content = (root / "scratch").read_bytes()
    memory = MemoryFile(FILE, len(content))
    memory.write(memoryview(content), 0)
    memory.seal()
    return memory, f"/proc/{os.getpid()}/fd/{memory.descriptor}"

def engine_on(folder, **more):
    # A whole engine; or only its worker with the model, which is soon there, and makes no tokens.
    given = dict(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, dtype="bfloat16",
        kv_cache_memory_bytes=1 << 26, max_num_seqs=4, worker_extension_cls="forced_extension.Extension", **more)
    if more.pop("tokens", False):
        del given["tokens"]
        return vllm.LLM(**given)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port
    from vllm.v1.worker.worker_base import WorkerWrapperBase
    wrapper = WorkerWrapperBase(rpc_rank=0)
    place = get_distributed_init_method("127.0.0.1", get_open_port())
    config = EngineArgs(**given).create_engine_config()
    wrapper.init_worker([
        dict(vllm_config=config, local_rank=0, rank=0, distributed_init_method=place, is_driver_worker=True)])
    wrapper.init_device()
    wrapper.load_model()
    return wrapper.worker

def tokens(engine):
    if not isinstance(engine, vllm.LLM):
        return []
    engine.reset_prefix_cache()
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False, logprobs=0)
    prompts = [{"prompt_token_ids": [5, 6, 7, 9]}, {"prompt_token_ids": [100, 3]}]
    outs = [each.outputs[0] for each in engine.generate(prompts, sampling, use_tqdm=False)]
    return [[*out.token_ids, out.cumulative_logprob] for out in outs]

def call(engine, method, **given):
    if isinstance(engine, vllm.LLM):
        answers = engine.collective_rpc("rlfleet_call", args=(method, given))
    else:
        answers = [engine.rlfleet_call(method, given)]
    assert not any(answer["error"] for answer in answers), answers
    return [answer["result"] for answer in answers]

def whole(engine, path, again=False):
    given = {"copies": {}, "casts": {}, "digests": None, "started": False, "again": again}
    for answer in call(engine, "rlfleet_load", files=[path], **given):
        assert answer["ok"], answer

def hold(engine, path, base, room):
    deadline = time.monotonic() + 30
    while not all(each["done"] for each in call(engine, "rlfleet_hold", links=[path], base=[base], room=room, samples=True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)

def in_place_or_why(engine, path, base, casts=None, compared=True, room=1 << 30):
    if compared:
        hold(engine, path, base, room)
    given = {"files": [path], "base": [base], "copies": {}, "casts": casts or {}}
    return [each["why_not"] for each in call(engine, "rlfleet_load_in_place", **given)]

def model_of(engine):
    return engine.model_runner.get_model()

def bits(engine):
    # Of all parameters, where no kernel keeps them for itself.
    found = call(engine, "rlfleet_checksum")
    assert sys.argv[3] != "plain" or all(each["complete"] for each in found)
    return [each["checksum"] for each in found]

write_first(root / "first")
versions = [load_file(root / "first" / FILE)]
for _ in range(3):
    versions.append(changed(versions[-1]))
""".replace("__FORCE__", repr(FORCE))

_CHAIN = (
    _SCRIPT
    + """
found = {}
more = json.loads(sys.argv[4])
engine = engine_on(root / "first", **more)
kept = [sealed(each) for each in versions]
paths = [path for _, path in kept]
found["before a whole load"] = in_place_or_why(engine, paths[1], paths[0])
of_whole, effects = [], {"whole": [], "in place": []}
for path in paths:
    whole(engine, path)
    of_whole.append([tokens(engine), bits(engine)])
    effects["whole"].append(call(engine, "rlfleet_effect"))
whole(engine, paths[0])
of_chain, found["why not"] = [[tokens(engine), bits(engine)]], []
for base, path in zip(paths, paths[1:]):
    found["why not"] += in_place_or_why(engine, path, base)
    of_chain.append([tokens(engine), bits(engine)])
    effects["in place"].append(call(engine, "rlfleet_effect"))
found["same effects"] = effects["in place"] == effects["whole"][1:]
found["why not"] += in_place_or_why(engine, paths[2], paths[3])
found["back"] = [tokens(engine), bits(engine)] == of_whole[2]
found["same"] = [one == other for one, other in zip(of_whole, of_chain)]
found["distinct"] = len({str(each) for each in of_whole})
print("result", json.dumps(found))
"""
)


def chain(folder: Path, architecture: str, kernel: str = "plain", **more: Any) -> dict[str, Any]:
    """The results of a chain of three versions in place, compared with full loads."""
    return dict(output_of(_CHAIN, str(folder), architecture, kernel, json.dumps(more)))


_PARTS = """
import json
import time
import numpy as np
import torch
from fleet_worker.engine import in_place
from fleet_worker.engine.changes import NotInPlaceError, changed_at

class FakeModel(torch.nn.Module):  # loads fused, sharded, transposed and padded parts
    def __init__(self):
        super().__init__()
        for name, shape in {"qkv": (12, 8), "o": (8, 4), "t": (8, 6), "e": (3, 4, 5)}.items():
            values = torch.zeros(shape, dtype=torch.bfloat16)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
    def load_weights(self, weights):
        for name, each in weights:
            if name in ("q", "k", "v"):
                self.qkv.data.narrow(0, 4 * "qkv".index(name), 4).copy_(each.narrow(0, 0, 4))
            elif name == "o":
                self.o.data.copy_(each.narrow(1, 4, 4))
            elif name == "t":
                self.t.data.copy_(each.t())
            elif name == "e":
                self.e[1].data.copy_(each[:, 2:7])
                self.e[2].data.fill_(0)

WRONG = {
    "computes": lambda model, each: model.o.data.copy_(each.narrow(1, 4, 4) * 2),
    "casts": lambda model, each: model.o.data.copy_(each.narrow(1, 4, 4).float()),
    "reads one number": lambda model, each: model.o.data.fill_(each[0, 0].item()),
    "adds": lambda model, each: model.o.data.add_(each.narrow(1, 4, 4)),
    "broadcasts": lambda model, each: model.o.data.copy_(each[:1, :4]),
    "takes other memory": lambda model, each: setattr(model.o, "data", each.narrow(1, 4, 4)),
}
SHAPES = {"q": (8, 8), "k": (4, 8), "v": (4, 8), "o": (8, 8), "t": (6, 8), "e": (4, 9)}
generator = np.random.default_rng(82)

def drawn(base=None):
    found = {}
    for name, shape in SHAPES.items():
        values = torch.from_numpy(generator.normal(size=shape).astype("float32")).bfloat16()
        keeps = torch.from_numpy(generator.random(shape) > 0.3)
        found[name] = values if base is None else torch.where(keeps, base[name], values).contiguous()
    return found

def changes(one, other):
    bits = {name: [v[name].view(torch.int16).numpy().ravel() for v in (one, other)] for name in SHAPES}
    where = {name: np.flatnonzero(a != b).astype(np.int32) for name, (a, b) in bits.items()}
    return {name: changed_at(at, *bits[name], 64) for name, at in where.items() if len(at)}

def loaded(version):
    model = FakeModel()
    model.load_weights(version.items())
    return model

def state(model):
    return [each.view(torch.int16).tolist() for each in model.parameters()]

found = {"same": [], "refused": {}}
for _ in range(50):
    one = drawn()
    other = drawn(one)
    other["q"][0, 3] = float("nan")
    where, model = changes(one, other), loaded(one)
    given = [(name, other[name]) for name in where]
    with torch.inference_mode():
        in_place.change(model, given, where, about_to_write=lambda: None)
        in_place.check(in_place.placed_in(model, [*other.items()]), whole=True)
    found["same"].append(state(model) == state(loaded(other)))
for name, loads in WRONG.items():
    model = loaded(one)
    before = state(model)
    model.load_weights = lambda weights: [loads(model, each) for _, each in weights]
    try:
        in_place.placed_in(model, [("o", other["o"])])
    except NotInPlaceError as error:
        found["refused"][name] = [str(error), state(model) == before]
# A part without a sample of its tensor's changes, in a process with other weights than the base.
one = {"o": torch.zeros(8, 8, dtype=torch.bfloat16)}
other = {"o": one["o"].clone()}
other["o"][:, :4] = 1.0
other["o"][5, 6] = 1.0
bits = [each["o"].view(torch.int16).numpy().ravel() for each in (one, other)]
few = changed_at(np.flatnonzero(bits[0] != bits[1]).astype(np.int32), *bits, 2)
model = FakeModel()
model.o.data.fill_(7.0)
try:
    in_place.change(model, [("o", other["o"])], {"o": few}, about_to_write=lambda: None)
except NotInPlaceError as error:
    found["other"] = str(error)

# Many changes, of which the check of the base looks at few.
source = torch.zeros(1 << 23, dtype=torch.bfloat16)
at = np.arange(0, len(source), 2, dtype=np.int32)
placed = in_place.Placed("many", source.clone(), source, 0)
many = in_place.Writing(placed, at, np.ones(len(at), np.int16), at[:64], np.zeros(64, np.int16))
seconds = []
for step in (lambda: in_place.check_base([many]), many.write):
    began = time.process_time()
    step()
    seconds.append(time.process_time() - began)
found["check over writes"] = seconds[0] / seconds[1]
print("result", json.dumps(found))
"""


def test_fused_sharded_and_transposed_parts_get_the_elements_of_a_full_load() -> None:
    found = dict(output_of(_PARTS))

    assert found["same"] == [True] * 50
    assert "other values of o" in found["other"]
    assert found["check over writes"] < 0.5
    assert sorted(found["refused"]) == [
        "adds",
        "broadcasts",
        "casts",
        "computes",
        "reads one number",
        "takes other memory",
    ]
    intact = {name: is_intact for name, (_, is_intact) in found["refused"].items()}
    # Such a loader cannot be stopped. The full load follows.
    assert intact.pop("takes other memory") is False
    assert all(intact.values())


_REFUSALS = (
    _SCRIPT
    + """
engine = engine_on(root / "first")
special = {name: each.clone() for name, each in versions[2].items()}
special["model.norm.weight"][5] = float("nan")
many = changed(versions[0], share=0.2)
kept = [sealed(each) for each in (*versions, special, many)]
paths = [path for _, path in kept]
found, of_whole = {}, []
for path in paths[:3]:
    whole(engine, path)
    of_whole.append([tokens(engine), bits(engine)])
whole(engine, paths[4])
of_nan = bits(engine)

def refused(name, path, base, **given):
    # Why it is refused, and whether the engine is as it was.
    before = bits(engine)
    (why,) = in_place_or_why(engine, path, base, **given)
    found[name] = [why, bits(engine) == before]

whole(engine, paths[0])
refused("not compared", paths[1], paths[0], compared=False)
refused("another base", paths[2], paths[1])
refused("too many", paths[5], paths[0])
call(engine, "rlfleet_hold", links=[])
hold(engine, paths[1], paths[0], 1 << 30)
(held,) = call(engine, "rlfleet_hold", links=[paths[1]], base=[paths[0]])
call(engine, "rlfleet_hold", links=[])
refused("no room", paths[1], paths[0], room=held["changes"] - 1)
call(engine, "rlfleet_hold", links=[])
refused("cast", paths[1], paths[0], casts={"model.norm.weight": "F16"})
engine._rlfleet_in_a_row = 20
refused("in a row", paths[1], paths[0])
engine._rlfleet_in_a_row = 0

load_weights = type(model_of(engine)).load_weights
type(model_of(engine)).load_weights = lambda self, weights: load_weights(self, ((n, w * 1) for n, w in weights))
refused("computes", paths[1], paths[0])
type(model_of(engine)).load_weights = load_weights

norm = model_of(engine).model.norm.weight
with torch.inference_mode():
    was = norm.clone()
    norm += 1
refused("drift", paths[1], paths[0])
with torch.inference_mode():
    norm.copy_(was)

found["in place after all"] = in_place_or_why(engine, paths[1], paths[0])
found["is the whole one"] = [tokens(engine), bits(engine)] == of_whole[1]
found["NaN"] = in_place_or_why(engine, paths[4], paths[1])
found["NaN is the whole one"] = bits(engine) == of_nan

whole(engine, paths[0])
put, count = in_place._put, []
def fake_put(*given):
    count.append(given)
    if len(count) == 3:
        raise RuntimeError("injected")
    put(*given)
in_place._put = fake_put
refused("in the middle", paths[1], paths[0])
in_place._put = put
whole(engine, paths[1], again=True)
found["repaired"] = [tokens(engine), bits(engine)] == of_whole[1]
found["effect"] = call(engine, "rlfleet_effect")[0]["changed"] > 0
refused("given up", paths[2], paths[1])
print("result", json.dumps(found))
"""
)


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("Qwen3", {}),
        ("tied", {}),
        ("Llama", {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}),
        ("Qwen2", {}),
        pytest.param("Qwen3", {"tokens": True, "tensor_parallel_size": 2}, marks=pytest.mark.long),
    ],
)
def test_a_chain_loaded_in_place_is_bit_for_bit_that_of_full_loads(
    tmp_path: Path, architecture: str, more: dict[str, Any]
) -> None:
    processes = more.get("tensor_parallel_size", 1)
    found = chain(tmp_path, architecture, **more)

    before = "the engine does not have exactly the version before"
    assert found["before a whole load"] == [before] * processes
    assert found["why not"] == [None] * 4 * processes
    assert found["same"] == [True] * 4
    assert found["same effects"]
    assert found["back"]
    assert found["distinct"] == 4


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["Mistral", "Gemma 3"])
def test_so_is_one_of_other_dense_architectures(tmp_path: Path, architecture: str) -> None:
    found = chain(tmp_path, architecture)

    assert found["why not"] == [None] * 4
    assert found["same"] == [True] * 4


@pytest.mark.parametrize(
    ("architecture", "kernel", "why"),
    [
        ("Qwen3", "oneDNN", "vLLM's kernel for CPUs keeps a packed copy of the weight of "),
        ("experts", "plain", "loads in place are not tested with Qwen3MoeForCausalLM"),
    ],
)
def test_a_model_whose_kernels_keep_other_weights_is_loaded_in_full(
    tmp_path: Path, architecture: str, kernel: str, why: str
) -> None:
    found = chain(tmp_path, architecture, kernel)

    assert [why in str(each) for each in found["why not"]] == [True] * 4


def test_what_cannot_be_loaded_in_place_leaves_the_engine_as_it_is_or_is_repaired(
    tmp_path: Path,
) -> None:
    found = dict(output_of(_REFUSALS, str(tmp_path), "Qwen3", "plain"))

    intact = {
        "not compared": "the two versions were not compared before the load",
        "another base": "the engine does not have exactly the version before",
        "too many": "more than 5% of the elements have changed",
        "no room": "the changed elements need more than",
        "cast": "a load casts model.norm.weight",
        "in a row": "20 versions in a row were loaded in place",
        "computes": "the model's loader computes with the tensors that it gets",
    }
    said = {name: [found[name][0][: len(why)], found[name][1]] for name, why in intact.items()}
    assert said == {name: [why, True] for name, why in intact.items()}
    why, is_intact = found["drift"]
    assert is_intact
    assert "the engine has other values of model.norm.weight" in why
    assert found["in place after all"] == found["NaN"] == [None]
    assert found["is the whole one"]
    assert found["NaN is the whole one"]
    assert found["in the middle"] == ["RuntimeError: injected", False]
    assert found["repaired"]
    assert found["effect"]
    assert found["given up"][0] == "an earlier load in place has failed: RuntimeError: injected"
