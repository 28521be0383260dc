"""Names on vLLM's worker object in the engine's processes, whose classes depend on the device.

vLLM has two runners, and takes the second where Triton is and the model allows it.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.engine.required_names import has

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


def runner_of(worker: Any) -> str:
    """Return the module of the runner that a worker has; empty if it is neither."""
    modules = {each.__module__ for each in type(worker.model_runner).__mro__}
    return next((each for each in RUNNER_NAMES if each in modules), "")


def missing_on(worker: Any) -> list[str]:
    """Return the names that a worker object of the engine lacks."""
    runner = runner_of(worker)
    if not runner:
        return [f"model_runner of {' or '.join(RUNNER_NAMES)}"]
    return [
        f"{attribute}({', '.join(parameters)})"
        for attribute, parameters in (*WORKER_NAMES, *RUNNER_NAMES[runner])
        if not has(worker, attribute, parameters)
    ]
