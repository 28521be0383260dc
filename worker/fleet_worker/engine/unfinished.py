"""Layers of vLLM that a load or a transfer has left unfinished.

vLLM loads a model layer by layer. Until all parts of a layer are there, it buffers them, and the layer
has no values. An unfinished layer keeps its parts. The next load would count them as its own, and finish
the layer before all parts are there: the rest would be uninitialised memory, under a good label.

Source: `initialize_layerwise_reload` and `finalize_layerwise_processing` of vLLM.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fleet_worker.engine.vllm_names import LAYERWISE


def drop_unfinished(model: Any) -> None:
    """Give unfinished layers their former tensors back, and forget the buffered parts.

    The model then has parts of two versions. Only a whole load makes it usable.
    """
    layerwise = importlib.import_module(LAYERWISE)
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if not info.can_load():
            continue
        if info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)  # noqa: SLF001 - there is no public way
        info.reset()
    layerwise.LOADING_LAYERS.clear()
    if hasattr(model, "_original_do_torchao_reload"):
        model._do_torchao_reload = model._original_do_torchao_reload  # noqa: SLF001 - as vLLM does


def layers_without_all_parts(model: Any) -> list[str]:
    """Return the names of layers of which an update has brought only some parts.

    vLLM would fill such a layer with uninitialised memory at the end of the update. A layer that the
    update has left out keeps its values, and so may parts of a tensor that are only padding.

    Args:
        model: The engine's model, before the end of an update.
    """
    layerwise = importlib.import_module(LAYERWISE)
    modules, found = dict(model.named_modules()), []
    for name, layer in modules.items():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            sizes = _sizes_of_parts(layer, modules.get(name.rpartition(".")[0]))
            if _lacks_parts(layer, sizes, info.loaded_weights):
                found.append(name)
    return found


def _sizes_of_parts(layer: Any, parent: Any) -> list[int]:
    """Return the sizes of the parts of a fused layer; empty for other layers.

    The last one may be padding, which no checkpoint has. Source: `in_proj_padding` of
    `KimiGatedDeltaNetAttention` of vLLM.
    """
    sizes = list(getattr(layer, "output_sizes", ()))
    padding = getattr(parent, "in_proj_padding", 0) * getattr(layer, "tp_size", 1)
    return sizes[:-1] if padding and sizes and sizes[-1] == padding else sizes


def _lacks_parts(layer: Any, sizes: list[int], loaded: Iterable[tuple[str, Any]]) -> bool:
    """Whether some part of a fused parameter has arrived, and another one has not."""
    parts = defaultdict[str, dict[int | None, set[Any]]](dict)
    for parameter, call in loaded:
        given = call.arguments
        shard = given.get("loaded_shard_id", given.get("shard_id"))
        if shard is not None:
            of_expert = parts[parameter].setdefault(given.get("expert_id"), set())
            of_expert.update(shard if isinstance(shard, tuple) else (shard,))
    return any(_is_partial(layer, sizes, experts) for experts in parts.values())


def _is_partial(layer: Any, sizes: list[int], experts: dict[int | None, set[Any]]) -> bool:
    """Whether parts are missing. `experts`: expert → its parts; None without experts."""
    if None not in experts and len(experts) < getattr(layer, "global_num_experts", 0):
        return True
    gated = getattr(getattr(layer, "moe_config", None), "is_act_and_mul", True)
    return any(not _all_parts(shards, sizes, gated=gated) <= shards for shards in experts.values())


def _all_parts(some: set[Any], sizes: list[int], *, gated: bool) -> set[Any]:
    """Return all parts of a parameter, given some of them.

    Source: `QKVParallelLinear`, `MergedColumnParallelLinear` and `RoutedExperts` of vLLM.

    Args:
        some: Parts that have arrived.
        sizes: Sizes of the parts of a merged layer.
        gated: The layer's experts have a gate (`w1`) and an up projection (`w3`).
    """
    for known in ({"q", "k", "v"}, {"w1", "w3"} if gated else {"w1"}):
        if some & known:
            return known
    return set(range(len(sizes))) if all(isinstance(each, int) for each in some) else set()
