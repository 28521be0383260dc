"""A load computes what a start on its files computes, with each of vLLM's kernels for CPUs; or it is refused.

Kernels keep weights packed, free them, or keep their addresses. Real layers of vLLM, without an engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kernels import FORCE, LACKS
from tests.engine.scripts import LOADS, output_of

_SCRIPT = (
    FORCE
    + LOADS
    + """
import json
from pathlib import Path
from types import SimpleNamespace
from safetensors.torch import save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.reload.inplace import reload_weights
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from fleet_worker.engine.extension import WorkerExtension

folder = Path(sys.argv[1])
config = VllmConfig()
context = set_current_vllm_config(config)
context.__enter__()
init_distributed_environment(1, 0, f"file://{folder}/group", 0, "gloo")
initialize_model_parallel()
torch.set_default_dtype(torch.bfloat16)
SIZE, WORDS, GROUP, BLOCK = 256, 64, 32, 128

def drawn(generator, *shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)

class Model(torch.nn.Module):
    def load_weights(self, weights):
        # As vLLM's models do: without the copy of a weight that layers share.
        parameters, written = dict(self.named_parameters()), set()
        for name, tensor in weights:
            if name not in self.shared:
                parameters[name].weight_loader(parameters[name], tensor)
                written.add(name)
        return written

class Plain(Model):
    def __init__(self, tied=False):
        super().__init__()
        self.embed, self.head = VocabParallelEmbedding(WORDS, SIZE), ParallelLMHead(WORDS, SIZE)
        self.up, self.down = ColumnParallelLinear(SIZE, 32, bias=True), RowParallelLinear(32, SIZE, bias=False)
        self.shared = {"head.weight"} if tied else set()
        if tied:
            self.head = self.head.tie_weights(self.embed)
    def forward(self):
        hidden = self.down(self.up(self.embed(torch.arange(12)))[0])[0]
        return self.head.quant_method.apply(self.head, hidden)
    @staticmethod
    def weights(generator):
        return {"embed.weight": drawn(generator, WORDS, SIZE), "head.weight": drawn(generator, WORDS, SIZE),
                "up.weight": drawn(generator, 32, SIZE), "up.bias": drawn(generator, 32),
                "down.weight": drawn(generator, SIZE, 32)}

class Tied(Plain):
    def __init__(self):
        super().__init__(tied=True)

class Quantised(Model):
    shared, bias = (), True
    def __init__(self):
        super().__init__()
        self.up = ColumnParallelLinear(SIZE, SIZE, bias=self.bias, quant_config=self.quantization(), prefix="up")
    def forward(self):
        return self.up(drawn(torch.Generator().manual_seed(9), 5, SIZE))[0]

def compressed(kind, **groups):
    group = {"targets": ["Linear"], **groups}
    return CompressedTensorsConfig.from_config(
        {"quant_method": "compressed-tensors", "format": kind, "ignore": [], "config_groups": {"group_0": group}})

class Int8(Quantised):
    def quantization(self):
        given = dict(num_bits=8, type="int", symmetric=True)
        return compressed("int-quantized", weights=given | dict(strategy="channel", dynamic=False),
                          input_activations=given | dict(strategy="token", dynamic=True))
    @staticmethod
    def weights(generator):
        return {"up.weight": torch.randint(-127, 127, (SIZE, SIZE), generator=generator, dtype=torch.int8),
                "up.weight_scale": drawn(generator, SIZE, 1, dtype=torch.float32), "up.bias": drawn(generator, SIZE)}

class Int4(Quantised):
    def quantization(self):
        given = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP, dynamic=False)
        return compressed("pack-quantized", weights=given)
    @staticmethod
    def weights(generator):
        words = torch.randint(-2**31, 2**31 - 1, (SIZE, SIZE // 8), generator=generator, dtype=torch.int32)
        return {"up.weight_packed": words, "up.weight_scale": drawn(generator, SIZE, SIZE // GROUP),
                "up.weight_shape": torch.tensor([SIZE, SIZE]), "up.bias": drawn(generator, SIZE)}

class Fp8(Quantised):
    bias = False
    def quantization(self):
        return Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK])
    @staticmethod
    def weights(generator):
        return {"up.weight": drawn(generator, SIZE, SIZE, dtype=torch.float8_e4m3fn),
                "up.weight_scale_inv": drawn(generator, SIZE // BLOCK, SIZE // BLOCK, dtype=torch.float32)}

class Worker(WorkerExtension):
    def __init__(self, model):
        self.model, self.vllm_config = model, config
        self.model_runner = SimpleNamespace(get_model=lambda: model)
    def reload_weights(self, *, weights_iterator):
        reload_weights(config, self.model, weights_iterator, None, True)

def started(kind, seed):
    model = kind()
    record_metadata_for_reloading(model)
    model.load_weights(kind.weights(torch.Generator().manual_seed(seed)).items())
    process_weights_after_loading(model, config.model_config, torch.device("cpu"))
    return model

def error_of(call):
    try:
        call()
    except Exception as error:
        return repr(error)

def functions_of(call):
    places = [(operations, "weight_packed_linear_cpu"), (operations, "onednn_mm"), (torch.nn.functional, "linear"),
              (torch.ops.zentorch, "zentorch_linear_unary")]
    called, real = set(), [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    def noting(name, function):
        return lambda *given, **named: called.add(name) or function(*given, **named)
    for place, name, function in real:
        setattr(place, name, noting(name, function))
    call()
    for place, name, function in real:
        setattr(place, name, function)
    return sorted(called)

(folder / "config.json").write_text("{}")

def tried(kind):
    config.model_config = SimpleNamespace(
        dtype=torch.bfloat16, is_moe=False, word_embeddings_untied_by_checkpoint=False,
        quantization=None if issubclass(kind, Plain) else "any")
    model, fresh = started(kind, 1), started(kind, 2)
    worker = Worker(model)
    if unfit := worker.rlfleet_unfit_kernel():
        return {"unfit": unfit}
    def load(seed, **changed):
        tensors = kind.weights(torch.Generator().manual_seed(seed)) | changed
        save_file({name: each for name, each in tensors.items() if each is not None}, folder / "model.safetensors")
        return worker.rlfleet_load(**load_of(folder))["error"]
    def same(one, other):
        return bool(torch.equal(one, other))
    first = model()
    errors = [load(2)]
    second = model()
    found = {"as a start": same(second, fresh()), "other": not same(first, second)}
    if issubclass(kind, Plain):
        found["functions"] = functions_of(model)
        found["without"] = load(1, **{"down.weight": None})
        found["misshapen"] = load(1, **{"down.weight": drawn(torch.Generator(), 48, 32)})
        found["then"] = error_of(model)
    errors.append(load(1))
    return found | {"back": same(model(), first), "errors": errors,
                    "freed": sorted(name for name, each in model.named_parameters() if not each.numel())}

KINDS = {"plain": Plain, "tied": Tied, "int8": Int8, "int4": Int4, "fp8": Fp8}
found = {}
for kernel, names in json.loads(sys.argv[2]).items():
    force(kernel)
    found[kernel] = {name: tried(KINDS[name]) if has(kernel) and has(name) else None for name in names}
print("result", json.dumps(found))
"""
)

KERNELS = {
    "AMX": ["plain", "tied", "int8", "int4", "fp8"],
    "oneDNN": ["plain", "tied", "int8", "int4"],
    "torch": ["plain", "tied"],
    "zentorch": ["plain", "tied", "int4"],
    "zentorch, packed": ["plain", "tied"],
}
FUNCTIONS = {
    "AMX": ["weight_packed_linear_cpu"],
    "oneDNN": ["onednn_mm"],
    "torch": ["linear"],
    "zentorch": ["linear", "zentorch_linear_unary"],
    "zentorch, packed": ["linear", "zentorch_linear_unary"],
}
"""Functions by which vLLM multiplies. The fake of zentorch calls `linear`."""
UNFIT = {("oneDNN", "int8"): "8-bit integers", ("zentorch", "int4"): "4-bit integers"}
CASES = [(kernel, kind) for kernel, kinds in KERNELS.items() for kind in kinds]
FIT = [case for case in CASES if case not in UNFIT]
PLAIN = [case for case in CASES if case[1] in {"plain", "tied"}]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("kernels")
    return dict(output_of(_SCRIPT, str(folder), json.dumps(KERNELS)))


def made(found: dict[str, Any], kernel: str, kind: str) -> dict[str, Any]:
    if found[kernel][kind] is None:
        pytest.skip(LACKS)
    return dict(found[kernel][kind])


@pytest.mark.parametrize(("kernel", "kind"), FIT)
def test_a_load_computes_what_a_start_computes(
    found: dict[str, Any], kernel: str, kind: str
) -> None:
    loaded = made(found, kernel, kind)

    assert loaded["errors"] == [None, None]
    assert (loaded["other"], loaded["as a start"], loaded["back"]) == (True, True, True)


@pytest.mark.parametrize(("kernel", "kind"), UNFIT)
def test_a_kernel_that_keeps_the_weights_of_its_start_is_named_before_a_load(
    found: dict[str, Any], kernel: str, kind: str
) -> None:
    unfit = made(found, kernel, kind)["unfit"]

    assert UNFIT[kernel, kind] in unfit
    assert " of up " in unfit


@pytest.mark.parametrize(("kernel", "kind"), PLAIN)
def test_the_kernel_is_the_one_that_was_forced(
    found: dict[str, Any], kernel: str, kind: str
) -> None:
    assert made(found, kernel, kind)["functions"] == FUNCTIONS[kernel]


@pytest.mark.parametrize(("kernel", "kind"), PLAIN)
def test_a_load_without_one_weight_fails_wherever_the_kernel_keeps_it(
    found: dict[str, Any], kernel: str, kind: str
) -> None:
    loaded = made(found, kernel, kind)

    assert loaded["freed"] == ([] if kernel == "torch" else ["down.weight", "up.weight"])
    assert "1 missing, such as down.weight" in loaded["without"]


@pytest.mark.parametrize(("kernel", "kind"), PLAIN)
def test_a_model_still_runs_after_a_load_that_failed(
    found: dict[str, Any], kernel: str, kind: str
) -> None:
    loaded = made(found, kernel, kind)

    assert loaded["misshapen"] is not None
    assert loaded["then"] is None
    assert loaded["back"]
