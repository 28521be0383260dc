"""Copies of weights that kernels keep, and that a reload of vLLM leaves as they were.

A reload processes the layers of which the files have tensors, and leaves out what vLLM does only once. Three
kinds of layers then compute with the version before, or with weights in another layout than their
kernel reads:

* Layers that share their weight with another one, such as a tied `lm_head`. Kernels of CPUs keep it packed.
* Experts, which kernels of CPUs pack only when they are made.
* Convolutions of Mamba2 on CPUs: a view of the first weight stays when the weight moves.

Source: `UnquantizedEmbeddingMethod`, `UnquantizedFusedMoEMethod._setup_kernel`, `MambaMixer2`,
`finalize_layerwise_processing`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Collection
from typing import Any

EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
EXPERTS = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"


def check_kernels(model: Any) -> None:
    """Check that the kernels of a model can take over new weights.

    Kernels for 8-bit integers on CPUs keep the address of the scales that a reload frees. They then compute
    with any values, and write beyond their output (`CPUInt8ScaledMMLinearKernel`, vLLM 0.32).

    Errors:
        RuntimeError: The model has such a kernel.
    """
    for name, layer in model.named_modules():
        if hasattr(getattr(getattr(layer, "scheme", None), "kernel", None), "dnnl_handler"):
            raise RuntimeError(
                f"vLLM's kernel of {name} for 8-bit integers on CPUs cannot take over new weights; use "
                "another quantization, or workers that start on the version"
            )


def renew_copies(model: Any, left_out: Collection[str]) -> None:
    """Let kernels take over the new weights.

    Args:
        model: The engine's model, after a load.
        left_out: Names of the layers that got no weights.
    """
    layers = list(model.modules())
    _process_tied(layers)
    _pack_experts(model, left_out)
    _copy_convolutions(layers)


def _process_tied(layers: list[Any]) -> None:
    method = importlib.import_module(EMBEDDING).UnquantizedEmbeddingMethod
    sharing: defaultdict[int, list[Any]] = defaultdict(list)
    for layer in layers:
        if isinstance(getattr(layer, "quant_method", None), method):
            sharing[layer.weight.data_ptr()].append(layer)
    for alike in sharing.values():
        for layer in alike if len(alike) > 1 else ():
            layer.quant_method.process_weights_after_loading(layer)


def _pack_experts(model: Any, left_out: Collection[str]) -> None:
    kind = importlib.import_module(EXPERTS).UnquantizedFusedMoEMethod
    for name, layer in model.named_modules():
        method = getattr(layer, "quant_method", None)
        # Those of a layer that was left out are packed already.
        if isinstance(method, kind) and method.moe_kernel is not None and name not in left_out:
            method.moe_kernel.fused_experts.process_weights_after_loading(layer)


def _copy_convolutions(layers: list[Any]) -> None:
    for layer in layers:
        plain = getattr(getattr(layer, "conv1d", None), "_cpu_unpacked_conv_weight", None)
        view = getattr(layer, "conv_weights", None)
        if plain is not None and view is not None:
            view.copy_(plain)
