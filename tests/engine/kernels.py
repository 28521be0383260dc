"""Forces vLLM's kernels for CPUs, each of them on every processor, in scripts with the real vLLM."""

from __future__ import annotations

FORCE = """
import os, sys
import torch
from vllm import _custom_ops as operations
from vllm.platforms import current_platform

# Their kernels use the tiles of AMX only to be faster.
WITHOUT_TILES = {"vllm.platforms.cpu", "vllm.model_executor.layers.utils",
                 "vllm.model_executor.layers.fused_moe.experts.cpu_moe",
                 "vllm.model_executor.kernels.linear.mixed_precision.cpu",
                 "vllm.model_executor.kernels.linear.scaled_mm.cpu"}
NEEDED = {"AMX": "weight_packed_linear", "int4": "cpu_gemm_wna16"}
has_tiles = torch.cpu._is_amx_tile_supported
KEPT = []

def has(kind):
    return kind not in NEEDED or hasattr(torch.ops._C, NEEDED[kind])

def force(kernel):
    torch.cpu._is_amx_tile_supported = lambda: False
    operations._supports_onednn = kernel != "torch"
    is_zentorch = kernel.startswith("zentorch")
    type(current_platform).is_zen_cpu = lambda self: is_zentorch
    if kernel == "AMX":
        force_amx()
    if kernel == "plain":
        from vllm.model_executor.layers import utils
        def keep(layer, remove_weight):
            layer.cpu_linear = torch.nn.functional.linear
        utils.dispatch_cpu_unquantized_gemm = keep
    if is_zentorch:
        make_zentorch()
        os.environ["VLLM_ZENTORCH_WEIGHT_PREPACK"] = str(int(kernel == "zentorch, packed"))

def force_amx():
    torch.cpu._is_amx_tile_supported = has_tiles
    if has_tiles():
        return
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import X86CPUUnquantizedExperts
    def fake_has_tiles():
        return sys._getframe(1).f_globals["__name__"] in WITHOUT_TILES
    torch.cpu._is_amx_tile_supported = fake_has_tiles
    X86CPUUnquantizedExperts.isa = "vec"  # the same weights, without tiles

def make_zentorch():
    fake = torch.library.Library("zentorch", "FRAGMENT")
    KEPT.append(fake)
    def function(declared, code):
        if not hasattr(torch.ops.zentorch, declared.partition("(")[0]):
            fake.define(declared)
            fake.impl(declared.partition("(")[0], code, "CPU")
    def linear(x, weight, bias, *, is_weight_prepacked):
        return torch.nn.functional.linear(x, weight.t() if is_weight_prepacked else weight, bias)
    function("zentorch_linear_unary(Tensor x, Tensor w, Tensor? bias, *, bool is_weight_prepacked) -> Tensor", linear)
    function("zentorch_weight_prepack_for_linear(Tensor w) -> Tensor", lambda weight: weight.t().clone())
    function("zentorch_woq_repack_weight(Tensor w) -> Tensor", lambda weight: weight.clone())
    function("zentorch_woq_linear(Tensor x) -> Tensor", lambda x: x.clone())
"""
"""Begins a script: `force(kernel)`, before the layers are made.

Kernels: `AMX`, `oneDNN`, `torch`, `zentorch`, `zentorch, packed` and `plain`, which keeps each weight as the checkpoint
has it, as GPUs do. vLLM's own functions choose by these switches, and
leave the state that the kernel leaves. Where there is no AMX, only the answer that there is some is a fake: the same
kernels run with AVX-512. The functions of zentorch are fakes, because vLLM has none of its own.

`has(kernel)` is false if vLLM has nothing of this kernel, or of this type of weights, for the processor.
"""

LACKS = "vLLM has no such kernel for this processor; those with AMX need at least avx512_bf16"
"""Why there is no result without `has`."""
