"""Layers that share their weight with another one, such as a tied `lm_head`.

A reload processes the layers of which the files have tensors. For a tied `lm_head` they have none. Kernels
of CPUs keep a packed copy of a weight, so `lm_head` would compute with the version before.

Source: `UnquantizedEmbeddingMethod` and `finalize_layerwise_processing`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import Any

EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"


def process_tied(model: Any) -> None:
    """Let the kernels of layers that share a weight take over its new values.

    Args:
        model: The engine's model, after a load.
    """
    method = importlib.import_module(EMBEDDING).UnquantizedEmbeddingMethod
    sharing: defaultdict[int, list[Any]] = defaultdict(list)
    for layer in model.modules():
        if isinstance(getattr(layer, "quant_method", None), method):
            sharing[layer.weight.data_ptr()].append(layer)
    for layers in sharing.values():
        for layer in layers if len(layers) > 1 else ():
            layer.quant_method.process_weights_after_loading(layer)
