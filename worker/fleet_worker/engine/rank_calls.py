"""Calls to one process of the engine, which answer with their error and never raise it.

vLLM reads one answer from each process, and stops at the first error. The answers of later processes
stay in their queues, and each later call would get the answer to the call before it.

Source: `MultiprocExecutor.collective_rpc` of vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fleet_worker.engine.kernel_copies import unfit_kernel
from fleet_worker.engine.reshaped import attention_layers, base_of, projection_of
from fleet_worker.engine.unfinished import layers_without_all_parts
from fleet_worker.engine.vllm_requests import lora_request
from fleet_worker.errors import Refusal

_LOG = logging.getLogger(__name__)
_NOT_DRAWN = (0x0280028002800280).to_bytes(8, "little")
"""Begin of NCCL's id where the trainer's `NCCL_COMM_ID` sets it, the same for all groups.

Source: `bootstrapGetUniqueId`, NCCL 2.28.
"""


class RankCalls:
    """Methods for vLLM's worker class, which `Processes` calls. All names begin with `rlfleet_`."""

    def rlfleet_call(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a method of vLLM's worker or of this extension.

        Returns:
            `{method, error, result}`. `method` is that of the call, to notice answers to other calls.
        """
        try:
            result, error = getattr(self, method)(**arguments), None
        except Exception as raised:  # noqa: BLE001 - any failure is an answer, see above
            _LOG.exception("%s failed in a process of the engine", method)
            result, error = None, described(raised)
        return {"method": method, "error": error, "result": result}

    def rlfleet_unfit_kernel(self) -> str | None:
        """Return why a kernel cannot take over new weights, or None."""
        return unfit_kernel(self.model_runner.get_model())  # type: ignore[attr-defined]  # of vLLM's Worker

    def rlfleet_add_adapter(self, name: str, number: int, path: str) -> list[str]:
        """Put an adapter into a slot.

        Returns:
            The adapter's modules that this process does not apply. vLLM drops them without an error.
        """
        self.add_lora(lora_request(name, number, path))  # type: ignore[attr-defined]  # of vLLM's Worker
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of vLLM's Worker
        manager = model.lora_manager
        applied = set(manager.modules) - _absorbed(model, manager.modules)
        # vLLM has put the parts of fused layers and of experts together, under the layer's name.
        return sorted(set(manager.get_adapter(number).loras) - applied)

    def rlfleet_adapters(self) -> list[int]:
        """Return the numbers of the adapters in slots."""
        return sorted(self.list_loras())  # type: ignore[attr-defined]  # of vLLM's Worker

    def rlfleet_group(self) -> str | None:
        """Return the id of the joined group, which no other group has; None if the backend has no such id.

        The trainer draws NCCL's id for each group, and all members receive it as they join.
        """
        group = getattr(self.weight_transfer_engine, "model_update_group", None)  # type: ignore[attr-defined]  # of vLLM's Worker
        number = getattr(group, "unique_id", None)
        drawn = bytes(number.internal) if number is not None else b""
        return drawn.hex() if drawn.strip(b"\0") and not drawn.startswith(_NOT_DRAWN) else None

    def rlfleet_layers_without_all_parts(self) -> list[str]:
        """Return the layers of which an update has brought only some parts."""
        return layers_without_all_parts(self.model_runner.get_model())  # type: ignore[attr-defined]  # of vLLM's Worker


def _absorbed(model: Any, modules: Mapping[str, Any]) -> set[str]:
    """Return the modules whose weight an attention layer multiplies into others, without the adapter.

    Source: `MLAAttention.process_weights_after_loading` of vLLM.
    """
    absorbed = {id(projection_of(attention)) for attention in attention_layers(model)}
    return {name for name, module in modules.items() if id(base_of(module)) in absorbed}


def described(error: BaseException) -> str:
    """Return the type and text of an error, at most 500 characters."""
    if isinstance(error, Refusal):
        return error.message
    return f"{type(error).__name__}: {error}"[:500]
