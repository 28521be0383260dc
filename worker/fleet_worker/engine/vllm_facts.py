"""Read facts from vLLM: its configuration, model and tokenizer, and the fields of a token request.

The worker refuses settings under which a swap would leave results of old weights. Flags can be spelled,
abbreviated or implied in more ways than a list of names covers. So the check reads the configuration
that vLLM runs with. If a field is missing, the worker refuses this vLLM.

The fields come from the application's OpenAPI document. vLLM's classes move between modules, but the
document of its routes is stable.

Source: `VllmConfig` of vLLM, and fast tokenizers of `transformers`, whose decoder defines
the format of token names. For other tokenizers only the bytes of whole letters are known, not those of
parts of letters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from fleet_worker.engine.facts import Facts, bytes_of_byte_level, bytes_of_sentence_piece
from fleet_worker.engine.required_names import UnsupportedEngineError, supported_range
from fleet_worker.protocol import TOKEN_ROUTE

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
            _offloaded_weights(config.offload_config),
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


def _offloaded_weights(offload: Any) -> str:
    group, gigabytes = offload.prefetch.offload_group_size, offload.uva.cpu_offload_gb
    if not group and not gigabytes:
        return ""
    return (
        f"offload_config.prefetch.offload_group_size is {group} and uva.cpu_offload_gb is"
        f" {gigabytes:g}: a load would leave old weights in the host's memory; remove the flags"
        " --offload-* and --cpu-offload-*"
    )


def described(config: Any, name: str) -> dict[str, Any]:
    """Return the parts that TRL and NeMo-RL read.

    `name`: `model` of requests.
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
            "logprobs_mode": str(model.logprobs_mode),
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


_SCHEMA = "GenerateRequest"


def _description(app: Any) -> dict[str, Any]:
    """Return the OpenAPI document of the token route. That of all routes takes a second to build."""
    from fastapi.openapi.utils import get_openapi  # noqa: PLC0415 - comes with vLLM

    routes = [each for each in app.routes if getattr(each, "path", None) == TOKEN_ROUTE]
    return dict(get_openapi(title="vLLM", version="", routes=routes))


def facts_of(client: Any, app: Any, names: Callable[[], Sequence[str]]) -> Facts:
    """Return the facts that the public routes need.

    Args:
        client: vLLM's engine client.
        app: vLLM's application.
        names: Returns the models that requests may name.

    Errors:
        UnsupportedEngineError: this vLLM has another token route.
    """
    tokenizer = client.get_tokenizer()
    config = client.vllm_config.model_config
    schemas = _description(app).get("components", {}).get("schemas", {})
    schema = schemas.get(_SCHEMA, {}).get("properties", {})
    sampling = schema.get("sampling_params", {}).get("properties", {})
    if not sampling:
        raise UnsupportedEngineError(
            f"vLLM's OpenAPI document has no {_SCHEMA} with sampling_params for"
            " /inference/v1/generate; install a supported vLLM"
        )
    return Facts(
        names=names,
        max_length=int(config.max_model_len),
        # The limit that vLLM uses: a model may have more ids than its tokenizer, or fewer.
        id_limit=max(int(config.get_vocab_size()), int(tokenizer.max_token_id) + 1),
        vocabulary=TokenizerVocabulary(tokenizer),
        generate_keys=frozenset(schema),
        sampling_keys=frozenset(sampling),
        routes_experts=bool(client.vllm_config.aux_output_config.enable_return_routed_experts),
    )


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenizerVocabulary:
    """The tokens of a tokenizer. It caches its answers, at most one per token of the vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {
            int(token_id): str(token.content)
            for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        }
        self._read = _reader(tokenizer)
        self._known: dict[int, bytes | None] = {}

    def knows(self, token_id: int) -> bool:
        """Return whether the id is one of the tokenizer's."""
        return self._name(token_id) is not None

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token; None if they are not known."""
        if token_id not in self._known:
            self._known[token_id] = self._bytes_of(token_id)
        return self._known[token_id]

    def _bytes_of(self, token_id: int) -> bytes | None:
        if token_id in self._added:
            return self._added[token_id].encode()
        name = self._name(token_id)
        if name is None:
            return None
        found = self._read(name) if self._read is not None else None
        if found is not None:
            return found
        text = str(self._tokenizer.decode([token_id]))
        return text.encode() if text and _REPLACEMENT not in text else None

    def _name(self, token_id: int) -> str | None:
        try:
            (name,) = self._tokenizer.convert_ids_to_tokens([token_id])
        except (IndexError, KeyError, OverflowError, ValueError):
            return None  # slow tokenizers raise, fast ones return None
        return None if name is None else str(name)


def _reader(tokenizer: Any) -> Callable[[str], bytes | None] | None:
    """Return the function that reads this tokenizer's token names; None to decode them."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return None
    described = decoder.__getstate__().decode()
    kinds = set(_kinds(json.loads(described)))
    if "ByteLevel" in kinds:
        return bytes_of_byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return bytes_of_sentence_piece
    return None


def _kinds(description: Any) -> list[str]:
    """Return the kinds of a decoder and of its parts."""
    if not isinstance(description, dict):
        return []
    inner = [kind for each in description.get("decoders", []) for kind in _kinds(each)]
    return [str(description.get("type")), *inner]
