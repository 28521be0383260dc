"""Every name of vLLM that the worker needs, private ones too.

The next release of vLLM is read against this file. Docstrings elsewhere say what vLLM does and why that
matters (`Source:`); all of them are true of the releases in `READ`. Differences between these are a table in
docs/reference/engine.md.
"""

from __future__ import annotations

from dataclasses import dataclass

READ = ("0.32", "0.33")
"""The releases whose source was read."""

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
SAMPLING = "vllm.sampling_params"
EXCEPTIONS = "vllm.exceptions"
ENVIRONMENT = "vllm.envs"
LORA_REQUEST = "vllm.lora.request"
LOADERS = "vllm.model_executor.model_loader"
LAYERWISE = f"{LOADERS}.reload.layerwise"
META = f"{LOADERS}.reload.meta"
EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
LINEAR = "vllm.model_executor.layers.linear"
ATTENTION = "vllm.model_executor.layers.attention.attention"
MLA = "vllm.model_executor.layers.attention.mla_attention"
EXPERTS = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
RECURRENT = "vllm.model_executor.layers.mamba.abstract"
_CLIENT = "vllm.v1.engine.async_llm"


@dataclass(frozen=True, slots=True)
class Name:
    """A module, an attribute in it (with dots for nested ones), and parameters that it must accept."""

    module: str
    attribute: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        dotted = f"{self.module}.{self.attribute}" if self.attribute else self.module
        return f"{dotted}({', '.join(self.parameters)})" if self.parameters else dotted


API_SERVER_NAMES = (
    Name(SERVER_MODULE),
    Name("vllm.plugins", "ENDPOINT_PLUGINS_GROUP"),
    Name(SAMPLING, "SamplingParams", ("output_kind", "prompt_logprobs", "detokenize")),
    Name(SAMPLING, "RequestOutputKind.FINAL_ONLY"),
    Name("vllm.renderers.online_renderer", "_reused_prompt_token_ids", ("request", "messages")),
    Name("vllm.config", "AuxOutputConfig.enable_return_routed_experts"),
    Name("vllm.outputs", "CompletionOutput.__dataclass_fields__"),
    Name("vllm.sequence", "IntermediateTensors", ("tensors",)),
    Name("vllm.outputs", "WeightVersionSpan", ("version", "start", "end")),
    Name(_CLIENT, "AsyncLLM.generate", ("prompt", "sampling_params", "request_id")),
    Name(_CLIENT, "AsyncLLM.get_tokenizer"),
    Name(_CLIENT, "AsyncLLM.pause_generation", ("mode", "clear_cache")),
    Name(_CLIENT, "AsyncLLM.is_paused"),
    Name(_CLIENT, "AsyncLLM.resume_generation"),
    Name(_CLIENT, "AsyncLLM.collective_rpc", ("method", "args")),
    Name(_CLIENT, "AsyncLLM.update_weight_version", ("new_version",)),
    Name(_CLIENT, "AsyncLLM.get_weight_version"),
    Name(_CLIENT, "AsyncLLM.reset_prefix_cache", ("reset_running_requests", "reset_connector")),
    Name(_CLIENT, "AsyncLLM.reset_mm_cache"),
    Name(_CLIENT, "AsyncLLM.reset_encoder_cache"),
    Name(EXCEPTIONS, "VLLMNotFoundError"),
    Name(EXCEPTIONS, "RetryableRequestError"),
    Name(ENVIRONMENT, "enable_envs_cache"),
    Name(LORA_REQUEST, "LoRARequest", ("lora_name", "lora_int_id", "lora_path")),
    Name(_CLIENT, "AsyncLLM.sleep", ("level", "mode")),
    Name(_CLIENT, "AsyncLLM.wake_up", ("tags",)),
    Name(_CLIENT, "AsyncLLM.abort", ("request_id", "internal")),
    Name(_CLIENT, "AsyncLLM.get_num_unfinished_requests"),
    Name(_CLIENT, "AsyncLLM.errored"),
    Name(LOADERS, "register_model_loader", ("load_format",)),
    Name(LOADERS, "DefaultModelLoader._get_weights_iterator", ("source",)),
    Name(LOADERS, "DefaultModelLoader.Source", ("model_or_path", "prefix")),
)
"""Names to check in the API server's process before vLLM starts."""

ENGINE_NAMES = (
    Name(LAYERWISE, "get_layerwise_info", ("layer",)),
    Name(LAYERWISE, "_place_kernel_tensors", ("layer", "info")),
    Name(LAYERWISE, "LOADING_LAYERS"),
    Name(f"{LOADERS}.reload.types", "LayerReloadingInfo.can_load"),
    Name(f"{LOADERS}.reload.types", "LayerReloadingInfo.reset"),
    Name(f"{LOADERS}.reload.types", "LayerReloadingInfo", ("kernel_tensors", "loaded_weights")),
    Name(f"{LOADERS}.reload.types", "LayerReloadingInfo", ("restore_metadata",)),
    Name(META, "SKIP_TENSORS"),
    Name(EXPERTS, "UnquantizedFusedMoEMethod.process_weights_after_loading", ("layer",)),
    Name(EMBEDDING, "UnquantizedEmbeddingMethod.process_weights_after_loading", ("layer",)),
    Name(LINEAR, "UnquantizedLinearMethod.process_weights_after_loading", ("layer",)),
    Name(ATTENTION, "Attention.process_weights_after_loading", ("act_dtype",)),
    Name(MLA, "MLAAttention", ("kv_b_proj",)),
    Name(MLA, "MLAAttention.process_weights_after_loading", ("act_dtype",)),
    Name(RECURRENT, "MambaBase"),
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
    "model_config.logprobs_mode",
    "model_config.quantization",
    "model_config.get_vocab_size",
    "cache_config.block_size",
    "weight_transfer_config.backend",
    "lora_config.max_loras",
    "lora_config.max_lora_rank",
    "aux_output_config.enable_return_routed_experts",
)
"""Fields of vLLM's configuration that the worker reads."""

WORKER_NAMES = (
    ("reload_weights", ()),
    ("vllm_config.model_config.quantization", ()),
    ("vllm_config.parallel_config.enable_eplb", ()),
    ("vllm_config.compilation_config.static_forward_context", ()),
    ("weight_transfer_engine", ()),
    ("init_weight_transfer_engine", ("init_info",)),
    ("shutdown_weight_transfer_engine", ()),
    ("start_weight_update", ()),
    ("update_weights", ("update_info",)),
    ("finish_weight_update", ()),
    ("add_lora", ("lora_request",)),
    ("remove_lora", ("lora_id",)),
    ("list_loras", ()),
    ("_weight_update_active", ()),
    ("model_runner.reload_weights", ("weights_iterator",)),
    (
        "model_runner._dummy_run",
        ("num_tokens", "force_attention", "skip_eplb", "is_profile", "randomize_inputs"),
    ),
    ("model_runner.execute_model", ()),
    ("model_runner.kv_cache_config", ()),
    ("model_runner.get_model", ()),
    ("model_runner.model.load_weights", ()),
    ("model_runner.model.compute_logits", ()),
)
"""Names to check on the engine's worker object, whose classes depend on the device."""

FIRST_RUNNER = "vllm.v1.worker.gpu_model_runner"
SECOND_RUNNER = "vllm.v1.worker.gpu.model_runner"
RUNNER_NAMES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    FIRST_RUNNER: (
        ("model_runner.input_batch.block_table.block_tables", ()),
        ("model_runner.input_batch.block_table.commit_block_table", ()),
    ),
    SECOND_RUNNER: (
        ("model_runner.prepare_dummy_attn", ("input_batch", "valid_state_slots")),
        ("model_runner.execute_model", ("is_profile", "valid_dummy_state_slots")),
    ),
}
"""The same for each of the runners, by the module of its class. Those of other devices derive from them.

`_dummy_run` of the second takes any parameters, and gives these to `execute_model`.
"""
