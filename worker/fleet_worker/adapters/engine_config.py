"""What vLLM made of its flags, as far as a label could come to stand for other weights by it.

A flag can be spelled, abbreviated or implied in more ways than a list of names knows; the
configuration that vLLM runs with is one. Every field is looked up strictly: a vLLM that has renamed
one is refused instead of believed.

Source: `VllmConfig`, vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.adapters.engine_names import UnsupportedEngineError, supported_range

_RESET_AT_A_SWAP = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""Connectors that drop all keys and values on `reset_prefix_cache(reset_connector=True)`: vLLM's own
offloading to the host's memory. The others inherit a `reset_cache` that does nothing and reports
nothing."""


def unsafe_settings(config: Any) -> list[str]:
    """One sentence with a remedy for every setting under which a swap would leave something old.

    Args:
        config: vLLM's configuration, as the engine client holds it.

    Errors:
        UnsupportedEngineError: this vLLM keeps one of the settings elsewhere.
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
            f"vLLM lacks a setting that the worker must see ({error}); rlfleet needs"
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
        " old weights over a swap; take its flags away, or use --kv-offloading-size alone"
    )


def _encoder_cache(transfer: Any) -> str:
    if transfer is None or transfer.ec_connector is None:
        return ""
    return (
        f"ec_transfer_config.ec_connector is {transfer.ec_connector}: it keeps encodings of old"
        " weights over a swap; take --ec-transfer-config away"
    )


def _encoder_cache_manager(manager: Any) -> str:
    if manager.encoder_cache_manager_cls is None:
        return ""
    return (
        f"ec_manager_config.encoder_cache_manager_cls is {manager.encoder_cache_manager_cls}: only"
        " vLLM's own manager is known to drop its encodings at a swap; take --ec-manager-config away"
    )


def _experts(parallel: Any) -> str:
    if not parallel.enable_eplb:
        return ""
    return (
        "parallel_config.enable_eplb is set: a load would put experts where the rebalanced router"
        " does not look for them; take --enable-eplb away"
    )
