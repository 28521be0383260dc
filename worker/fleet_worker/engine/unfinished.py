"""Drop what a load or a transfer that has stopped in the middle left in vLLM's layers.

vLLM loads a model layer by layer. Until all parts of a layer are there, it buffers them, and the layer
has no values. An unfinished layer keeps its parts. The next load would count them as its own, and finish
the layer before all parts are there: the rest would be uninitialised memory, under a good label.

Source: `initialize_layerwise_reload` and `finalize_layerwise_processing`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from typing import Any

LAYERWISE = "vllm.model_executor.model_loader.reload.layerwise"


def drop_unfinished(model: Any) -> None:
    """Give unfinished layers their former tensors back, and forget the buffered parts.

    The model then has parts of two versions. Only a whole load makes it usable.

    Args:
        model: The engine's model.
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
