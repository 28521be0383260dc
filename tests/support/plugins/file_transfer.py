"""A weight transfer engine for vLLM that needs no GPU: it reads the tensors from files.

Only the transport differs from NCCL. vLLM's routes and bookkeeping are the same, and so is the
layerwise reload: the model is taken apart at the start and put together at the end. An update names
its file. An update that names tensors instead, as trainers announce them before a broadcast, blocks
until the file of the broadcast exists.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BACKEND = "files"
ENV_WIRE = "FILE_TRANSFER_WIRE"
"""Variable of the worker: a file in place of a broadcast."""
WIRE_SECONDS = 60


def register() -> None:  # noqa: C901 - one class, in parts
    """The entry point, called in every process of vLLM."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine  # noqa: PLC0415 - only engines have it
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - only engines have it

    if BACKEND in WeightTransferEngineFactory._registry:
        return

    @dataclass
    class Init:
        world_size: int
        rank_offset: int = 0
        master_address: str = ""
        master_port: int = 0
        packed: bool = False

    @dataclass
    class Update:
        file: str = ""
        fails_at: int = -1
        hangs_at: int = -1
        names: list[str] = field(default_factory=list)
        dtype_names: list[str] = field(default_factory=list)
        shapes: list[list[int]] = field(default_factory=list)

    class FileTransfer(WeightTransferEngine):
        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info: Any) -> None:
            if init_info.world_size < 2:
                raise ValueError("a group has a trainer and at least one engine")
            self.rank = init_info.rank_offset

        def start_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload.layerwise import (  # noqa: PLC0415 - only engines have it
                initialize_layerwise_reload,
            )

            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: Any) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Any) -> None:
            from safetensors.torch import load_file  # noqa: PLC0415 - only engines have it

            if update_info.fails_at == self.rank:
                raise ConnectionError(f"rank {self.rank} has lost the wire")
            if update_info.hangs_at == self.rank:
                time.sleep(WIRE_SECONDS)  # the test kills the process long before
            sent = load_file(update_info.file or broadcast())
            if update_info.names and sorted(update_info.names) != sorted(sent):
                raise ValueError("the broadcast has other tensors than were announced")
            self.model.load_weights(sent.items())

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload.layerwise import (  # noqa: PLC0415 - only engines have it
                finalize_layerwise_reload,
            )

            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            return

    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


def broadcast() -> Path:
    """The file of the broadcast, once the trainer has written it."""
    wire, limit = Path(os.environ[ENV_WIRE]), time.monotonic() + WIRE_SECONDS
    while not wire.exists():
        if time.monotonic() > limit:
            raise TimeoutError("the trainer has sent nothing")
        time.sleep(0.05)
    return wire
