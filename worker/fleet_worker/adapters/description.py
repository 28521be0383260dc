"""How an engine is set up, in the words of vLLM's `/server_info`, as far as trainers read it.

No paths, no environment, no addresses: what is here may be told to everybody who may drive.

Source: `VllmConfig`, vLLM 0.32.
"""

from __future__ import annotations

from typing import Any


def described(config: Any, name: str) -> dict[str, Any]:
    """The parts that TRL and NeMo-RL look at.

    Args:
        config: vLLM's configuration.
        name: What requests name as their model.
    """
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    transfer = config.weight_transfer_config
    lora = config.lora_config
    return {
        "model_config": {
            "served_model_name": name,
            "dtype": str(model.dtype),
            "max_model_len": int(model.max_model_len),
            "quantization": model.quantization,
        },
        "parallel_config": {
            "tensor_parallel_size": int(parallel.tensor_parallel_size),
            "pipeline_parallel_size": int(parallel.pipeline_parallel_size),
            "data_parallel_size": int(parallel.data_parallel_size),
            "world_size": int(parallel.world_size),
        },
        "cache_config": {"block_size": int(cache.block_size)},
        "weight_transfer_config": None if transfer is None else {"backend": str(transfer.backend)},
        "lora_config": None
        if lora is None
        else {"max_loras": int(lora.max_loras), "max_lora_rank": int(lora.max_lora_rank)},
    }
