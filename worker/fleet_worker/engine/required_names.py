"""Check at start every name of vLLM that the worker needs.

vLLM moves its modules at almost every release. A missing name must be one clear sentence at start, not an
AttributeError during a weight swap. The extra `worker` in pyproject.toml has the supported range.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

DISTRIBUTION = "rlfleet-server"
ENTRY_POINT_GROUP = "vllm.endpoint_plugins"
PLUGIN = "rlfleet"
SERVER_MODULE = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True, slots=True)
class Name:
    """A module, an attribute in it (with dots for nested ones), and parameters that it must accept."""

    module: str
    attribute: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        dotted = f"{self.module}.{self.attribute}" if self.attribute else self.module
        return f"{dotted}({', '.join(self.parameters)})" if self.parameters else dotted


_SAMPLING = "vllm.sampling_params"
_LOADERS = "vllm.model_executor.model_loader"
_CLIENT = "vllm.v1.engine.async_llm"
API_SERVER_NAMES = (
    Name(SERVER_MODULE),
    Name("vllm.plugins", "ENDPOINT_PLUGINS_GROUP"),
    Name(_SAMPLING, "SamplingParams", ("output_kind", "prompt_logprobs", "detokenize")),
    Name(_SAMPLING, "RequestOutputKind.FINAL_ONLY"),
    Name("vllm.renderers.online_renderer", "_reused_prompt_token_ids", ("request", "messages")),
    Name("vllm.config", "AuxOutputConfig.enable_return_routed_experts"),
    Name("vllm.outputs", "CompletionOutput.__dataclass_fields__"),
    Name("vllm.sequence", "IntermediateTensors", ("tensors",)),
    Name("vllm.outputs", "WeightVersionSpan", ("version", "start", "end")),
    Name(_CLIENT, "AsyncLLM.generate", ("prompt", "sampling_params", "request_id")),
    Name(_CLIENT, "AsyncLLM.get_tokenizer"),
    Name(_CLIENT, "AsyncLLM.pause_generation", ("mode", "clear_cache")),
    Name(_CLIENT, "AsyncLLM.resume_generation"),
    Name(_CLIENT, "AsyncLLM.collective_rpc", ("method", "args")),
    Name(_CLIENT, "AsyncLLM.update_weight_version", ("new_version",)),
    Name(_CLIENT, "AsyncLLM.get_weight_version"),
    Name(_CLIENT, "AsyncLLM.reset_prefix_cache", ("reset_running_requests", "reset_connector")),
    Name(_CLIENT, "AsyncLLM.reset_mm_cache"),
    Name(_CLIENT, "AsyncLLM.reset_encoder_cache"),
    Name("vllm.exceptions", "VLLMNotFoundError"),
    Name("vllm.lora.request", "LoRARequest", ("lora_name", "lora_int_id", "lora_path")),
    Name(_CLIENT, "AsyncLLM.sleep", ("level", "mode")),
    Name(_CLIENT, "AsyncLLM.wake_up", ("tags",)),
    Name(_CLIENT, "AsyncLLM.abort", ("request_id", "internal")),
    Name(_CLIENT, "AsyncLLM.get_num_unfinished_requests"),
    Name(_CLIENT, "AsyncLLM.errored"),
    Name(_LOADERS, "register_model_loader", ("load_format",)),
    Name(_LOADERS, "DefaultModelLoader._get_weights_iterator", ("source",)),
    Name(_LOADERS, "DefaultModelLoader.Source", ("model_or_path", "prefix")),
)
"""Names to check in the API server's process before vLLM starts."""

_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
_MLA = "vllm.model_executor.layers.attention.mla_attention"
_RELOAD = "vllm.model_executor.model_loader.reload"
ENGINE_NAMES = (
    Name(f"{_RELOAD}.layerwise", "get_layerwise_info", ("layer",)),
    Name(f"{_RELOAD}.layerwise", "_place_kernel_tensors", ("layer", "info")),
    Name(f"{_RELOAD}.layerwise", "LOADING_LAYERS"),
    Name(f"{_RELOAD}.types", "LayerReloadingInfo.can_load"),
    Name(f"{_RELOAD}.types", "LayerReloadingInfo.reset"),
    Name(f"{_RELOAD}.types", "LayerReloadingInfo", ("kernel_tensors", "loaded_weights")),
    Name(f"{_RELOAD}.types", "LayerReloadingInfo", ("restore_metadata",)),
    Name(f"{_RELOAD}.meta", "SKIP_TENSORS"),
    Name(
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method",
        "UnquantizedFusedMoEMethod.process_weights_after_loading",
        ("layer",),
    ),
    Name(_EMBEDDING, "UnquantizedEmbeddingMethod.process_weights_after_loading", ("layer",)),
    Name(_MLA, "MLAAttention", ("kv_b_proj",)),
    Name(_MLA, "MLAAttention.process_weights_after_loading", ("act_dtype",)),
    Name("vllm.model_executor.layers.mamba.abstract", "MambaBase"),
    Name("vllm.v1.kv_cache_interface", "KVCacheConfig", ("kv_cache_groups",)),
    Name("vllm.lora.model_manager", "LoRAModelManager.get_adapter", ("adapter_id",)),
)
"""Names to check in the engine's processes, which import these modules anyway."""

OBJECT_NAMES = (
    "vllm.entrypoints.openai.models.serving:OpenAIServingModels.lora_requests",
    "vllm.v1.engine.output_processor:OutputProcessor.request_states",
    "vllm.v1.engine.output_processor:OutputProcessor.parent_requests",
    "vllm.outputs:CompletionOutput.weight_versions",
    "vllm.model_executor.models.interfaces:SupportsLoRA.lora_manager",
    "vllm.lora.model_manager:LoRAModelManager.modules",
    "vllm.lora.lora_model:LoRAModel.loras",
    "vllm.distributed.weight_transfer.nccl_engine:NCCLWeightTransferEngine.model_update_group",
    "vllm.distributed.weight_transfer.sparse_nccl_engine:SparseNCCLWeightTransferEngine.model_update_group",
    "vllm.distributed.weight_transfer.m2n_engine:M2NWeightTransferEngine.model_update_group",
    "vllm.distributed.device_communicators.pynccl:PyNcclCommunicator.unique_id",
)
"""Attributes of objects, by the class that sets them. `check_objects` and `check_engine` check the first.
Without those of LoRA no adapter can be loaded. Without NCCL's, the workers of a group have different runs.
"""

CONFIGURATION_NAMES = (
    "kv_transfer_config.kv_connector",
    "kv_transfer_config.kv_connector_module_path",
    "ec_transfer_config.ec_connector",
    "ec_manager_config.encoder_cache_manager_cls",
    "parallel_config.enable_eplb",
    "offload_config.prefetch.offload_group_size",
    "offload_config.uva.cpu_offload_gb",
    "parallel_config.world_size",
    "parallel_config.tensor_parallel_size",
    "parallel_config.pipeline_parallel_size",
    "parallel_config.data_parallel_size",
    "model_config.dtype",
    "model_config.max_model_len",
    "model_config.max_logprobs",
    "model_config.quantization",
    "model_config.get_vocab_size",
    "cache_config.block_size",
    "weight_transfer_config.backend",
    "lora_config.max_loras",
    "lora_config.max_lora_rank",
    "aux_output_config.enable_return_routed_experts",
)
"""Fields of vLLM's configuration that the worker reads."""


class UnsupportedEngineError(Exception):
    """The worker cannot drive the installed vLLM."""


def supported_range() -> str:
    """Return the supported versions of vLLM from our metadata, e.g. `<0.34,>=0.32`."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - comes with vLLM

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedEngineError(
            f"the distribution {DISTRIBUTION} is not installed, and without its metadata vLLM does"
            " not find the worker's plugin: install it with pip"
        ) from error
    for line in lines:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": "worker"})
        if requirement.name == "vllm" and applies:
            return str(requirement.specifier)
    raise UnsupportedEngineError(
        "the metadata of rlfleet does not name the supported vLLM versions"
    )


def check_engine() -> str:
    """Check that this vLLM has all names that the worker needs, and will load our plugin.

    Returns:
        The version of vLLM.

    Errors:
        UnsupportedEngineError: with the missing names and the supported range.
    """
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - comes with vLLM

    supported = supported_range()
    try:
        version = str(importlib.import_module("vllm").__version__)
    except ImportError as error:
        raise UnsupportedEngineError(
            f"vLLM cannot be imported ({error}); install vllm{supported}"
        ) from error
    public = version.partition("+")[0]
    missing = missing_names(API_SERVER_NAMES)
    problems = [f"it lacks {name}" for name in missing]
    if not SpecifierSet(supported).contains(public, prereleases=True):
        problems.insert(0, "it is outside of that range")
    fields = getattr(importlib.import_module("vllm.outputs"), "CompletionOutput", None)
    if "weight_versions" not in getattr(fields, "__dataclass_fields__", {}):
        problems.append("its outputs have no weight_versions")
    if problems:
        raise UnsupportedEngineError(
            f"vLLM {version} is not supported (rlfleet needs vllm{supported}): {'; '.join(problems)}"
        )
    _check_entry_point()
    return version


def missing_names(names: tuple[Name, ...]) -> list[str]:
    """Return the names that are missing, or do not accept our parameters."""
    missing = []
    for name in names:
        with suppress(ImportError):
            if has(importlib.import_module(name.module), name.attribute, name.parameters):
                continue
        missing.append(str(name))
    return missing


def check_objects(client: object, models: object) -> None:
    """Check attributes that vLLM sets on objects, and not in their classes.

    Args:
        client: The engine client.
        models: vLLM's list of models (`OpenAIServingModels`).

    Errors:
        UnsupportedEngineError: with the missing names and the supported range.
    """
    needed = (
        (models, "lora_requests"),
        (client, "output_processor.request_states"),
        (client, "output_processor.parent_requests"),
    )
    missing = [
        f"{type(thing).__name__}.{attribute}"
        for thing, attribute in needed
        if not has(thing, attribute, ())
    ]
    if missing:
        raise UnsupportedEngineError(
            f"vLLM lacks {', '.join(missing)} (rlfleet needs vllm{supported_range()})"
        )


def has(thing: object, attribute: str, parameters: tuple[str, ...]) -> bool:
    """Return whether something has an attribute, dots go deeper, that accepts parameters of these names."""
    try:
        for part in filter(None, attribute.split(".")):
            thing = getattr(thing, part)
        if parameters:
            known = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]  # callable by then
            takes_any = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in known)
            return takes_any or set(parameters) <= {p.name for p in known}
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _check_entry_point() -> None:
    points = list(_entry_points())
    if len(points) != 1:
        raise UnsupportedEngineError(
            f"the entry point group {ENTRY_POINT_GROUP} has {len(points)} entries named {PLUGIN},"
            " expected 1: without it vLLM would serve without the latch. Install rlfleet again"
        )
    # If a plugin fails to load, vLLM only logs it and serves without it.
    points[0].load()


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    seen = set()
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == PLUGIN and point.value not in seen:
            seen.add(point.value)
            yield point
