"""A weight transfer engine of vLLM's that needs no GPU: it reads what it is sent from files.

Everything but the wire is as with NCCL: vLLM's routes, its bookkeeping, the model that is taken
apart at the start and put together at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BACKEND = "files"


def register() -> None:
    """The entry point, called in every process of vLLM."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine  # noqa: PLC0415 - only engines have it
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - only engines have it

    if BACKEND in WeightTransferEngineFactory._registry:
        return

    @dataclass
    class Init:
        world_size: int

    @dataclass
    class Update:
        file: str

    class FileTransfer(WeightTransferEngine):
        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info: Any) -> None:
            if init_info.world_size < 2:
                raise ValueError("a group has a trainer and at least one engine")

        def start_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload.layerwise import (  # noqa: PLC0415 - only engines have it
                initialize_layerwise_reload,
            )

            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: Any) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Any) -> None:
            from safetensors.torch import load_file  # noqa: PLC0415 - only engines have it

            self.model.load_weights(load_file(update_info.file).items())

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload.layerwise import (  # noqa: PLC0415 - only engines have it
                finalize_layerwise_reload,
            )

            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            return

    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
