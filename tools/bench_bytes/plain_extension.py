"""The worker's extension in an engine on CPUs that keeps weights as files have them, as engines on GPUs do."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers import utils

from fleet_worker.engine.extension import WorkerExtension


class PlainExtension(WorkerExtension):
    """vLLM imports it before it makes the layers."""


def _keep(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001, FBT001 - as of vLLM's own
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _keep
