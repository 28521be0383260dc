"""vLLM's configuration: the settings that the worker refuses, and the parts that trainers may read.

Under a refused setting a swap would leave results of old weights. Flags can be spelled, abbreviated or
implied in more ways than a list of names covers. So the check reads the configuration that vLLM runs
with. If a field is missing, the worker refuses this vLLM.

Source: `VllmConfig`, vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.engine.required_names import UnsupportedEngineError, supported_range

_RESET_AT_A_SWAP = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""Connectors that drop all keys and values on `reset_prefix_cache(reset_connector=True)`.

They are vLLM's own offloading to the host's memory. All others inherit a `reset_cache` without effect.
"""


def unsafe_settings(config: Any) -> list[str]:
    """Return one sentence with a remedy for every setting that keeps old results over a swap.

    Args:
        config: vLLM's configuration, from the engine client.

    Errors:
        UnsupportedEngineError: this vLLM lacks one of the settings.
    """
    try:
        found = [
            _key_and_value_cache(config.kv_transfer_config),
            _encoder_cache(config.ec_transfer_config),
            _encoder_cache_manager(config.ec_manager_config),
            _experts(config.parallel_config),
        ]
    except AttributeError as error:
        raise UnsupportedEngineError(
            f"vLLM lacks a setting that the worker checks ({error}); install"
            f" vllm{supported_range()}"
        ) from error
    return [sentence for sentence in found if sentence]


def _key_and_value_cache(transfer: Any) -> str:
    if transfer is None or transfer.kv_connector is None:
        return ""
    own = transfer.kv_connector in _RESET_AT_A_SWAP and transfer.kv_connector_module_path is None
    if own:
        return ""
    return (
        f"kv_transfer_config.kv_connector is {transfer.kv_connector}: it keeps keys and values of"
        " old weights over a swap; remove its flags, or use only --kv-offloading-size"
    )


def _encoder_cache(transfer: Any) -> str:
    if transfer is None or transfer.ec_connector is None:
        return ""
    return (
        f"ec_transfer_config.ec_connector is {transfer.ec_connector}: it keeps encodings of old"
        " weights over a swap; remove --ec-transfer-config"
    )


def _encoder_cache_manager(manager: Any) -> str:
    if manager.encoder_cache_manager_cls is None:
        return ""
    return (
        f"ec_manager_config.encoder_cache_manager_cls is {manager.encoder_cache_manager_cls}: only"
        " vLLM's own manager drops its encodings at a swap; remove --ec-manager-config"
    )


def _experts(parallel: Any) -> str:
    if not parallel.enable_eplb:
        return ""
    return (
        "parallel_config.enable_eplb is set: a load would put experts where the rebalanced router"
        " does not look for them; remove --enable-eplb"
    )


def described(config: Any, name: str) -> dict[str, Any]:
    """Return the parts that TRL and NeMo-RL read.

    Args:
        config: vLLM's configuration.
        name: `model` of requests.
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
