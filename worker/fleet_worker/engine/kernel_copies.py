"""Copies of weights that kernels keep, and that a reload of vLLM leaves as they were.

A reload processes the layers of which the files have tensors, and leaves out what vLLM does only once. Three
kinds of layers then compute with the version before, or with weights in another layout than their
kernel reads:

* Layers that share their weight with another one, such as a tied `lm_head`. Kernels of CPUs keep it packed.
* Experts, which kernels of CPUs pack only when they are made.
* Convolutions of Mamba2 on CPUs: a view of the first weight stays when the weight moves.

Source: `UnquantizedEmbeddingMethod`, `UnquantizedFusedMoEMethod._setup_kernel`, `MambaMixer2`,
`finalize_layerwise_processing` of vLLM.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from fleet_worker.engine.reshaped import attention_layers, is_freed, projection_of
from fleet_worker.engine.vllm_names import EMBEDDING, EXPERTS


def unfit_kernel(model: Any) -> str | None:
    """Return why a kernel of a model cannot take over new weights, or None. Changes nothing.

    The state of the layers tells:

    * The kernel of oneDNN for 8-bit integers keeps the address of the scales that a reload frees. It then
      computes with any values, and writes beyond its output (`CPUInt8ScaledMMLinearKernel` of vLLM).
    * zentorch's kernels for 4-bit integers pack the weights of the first load only
      (`ZentorchWNA16LinearKernel` of vLLM).
    * A layer packs no weight when it is processed, and yet its weight was freed. Something else has packed
      it, and only attention is known to do so at each load.
    """
    packed = {id(projection_of(attention)) for attention in attention_layers(model)}
    for name, layer in model.named_modules():
        if hasattr(getattr(getattr(layer, "scheme", None), "kernel", None), "dnnl_handler"):
            why = (
                f"vLLM's kernel of {name} for 8-bit integers on CPUs reads memory that a load frees"
            )
        elif getattr(layer, "_zentorch_processed_weights", False):
            why = f"zentorch's kernel of {name} for 4-bit integers keeps the weights of its start"
        elif _packs_nothing(layer) and is_freed(layer) and id(layer) not in packed:
            why = f"something has packed the weight of {name} at the start, and would keep it"
        else:
            continue
        return (
            f"this worker's engine cannot take over new weights: {why}; use another quantization, another"
            " kind of processor, or workers that start on the version"
        )
    return None


def renew_copies(model: Any, left_out: Collection[str]) -> None:
    """Let kernels take over the new weights. `left_out`: names of the layers that got none."""
    layers = list(model.modules())
    _process_tied(layers)
    _pack_experts(model, left_out)
    _copy_convolutions(layers)


def _packs_nothing(layer: Any) -> bool:
    return bool(getattr(layer, "_cpu_skip_gemm_dispatch", False))


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
