"""Tensors that something changes after their layer was processed.

A reload of vLLM processes a layer, and copies the results into the tensors that the model has. The copy fails
if these have another shape by then:

* Latent attention on CPUs with AMX packs the weight of its `kv_b_proj`, and frees it.
* Experts on CPUs are padded to a multiple of 32 when they are packed.

Here such a tensor takes the results as they are. It is changed again afterwards: vLLM processes attention at
the end of each reload, and `renew_copies` packs experts.

Source: `_copy_and_restore_kernel_tensors`, `MLAAttention.process_weights_after_loading` and
`CPUUnquantizedExperts._pad_moe_intermediate` of vLLM.
"""

from __future__ import annotations

import importlib
from typing import Any

from fleet_worker.engine.vllm_names import EXPERTS, LAYERWISE, MLA

_PROCESS = "process_weights_after_loading"


def take_new_shapes(model: Any) -> None:
    """Let the tensors above take over new weights, in all reloads from now on."""
    for attention in attention_layers(model):
        _take_after_processing(projection_of(attention).quant_method)
        _keep_what_was_left_out(attention)
    experts = importlib.import_module(EXPERTS).UnquantizedFusedMoEMethod
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, experts):
            _take_after_processing(method)


def attention_layers(model: Any) -> list[Any]:
    """Return the layers of latent attention."""
    kind = importlib.import_module(MLA).MLAAttention
    return [layer for layer in model.modules() if isinstance(layer, kind)]


def projection_of(attention: Any) -> Any:
    """Return the layer whose weight an attention layer multiplies into others."""
    return base_of(attention.kv_b_proj)


def base_of(layer: Any) -> Any:
    """Return the layer without the wrapper that LoRA adds."""
    return getattr(layer, "base_layer", layer)


def is_freed(layer: Any) -> bool:
    """Return whether the weight of a layer has no elements."""
    weight = getattr(layer, "weight", None)
    return weight is not None and weight.numel() == 0


def _take_after_processing(method: Any) -> None:
    if _PROCESS in vars(method):
        return
    process = getattr(method, _PROCESS)

    def processed(layer: Any) -> None:
        process(layer)
        _take(layer)

    setattr(method, _PROCESS, processed)


def _take(layer: Any) -> None:
    info = importlib.import_module(LAYERWISE).get_layerwise_info(layer)
    parameters, _ = info.kernel_tensors or ({}, {})  # none at the first load
    for name, tensor in parameters.items():
        result = getattr(layer, name)
        if may_take(tensor, result):
            tensor.data = result.data


def may_take(tensor: Any, result: Any) -> bool:
    """Return whether a tensor may point to a result. A graph of an accelerator has the addresses of its tensors."""
    return bool(tensor.device.type == "cpu" and tensor.shape != result.shape)


def _keep_what_was_left_out(attention: Any) -> None:
    """Leave the packed values as they are if an update has not brought the weight that they come from."""
    if _PROCESS in vars(attention):
        return
    process = getattr(attention, _PROCESS)

    def processed(act_dtype: Any) -> None:
        if not is_freed(projection_of(attention)):
            process(act_dtype)

    setattr(attention, _PROCESS, processed)
