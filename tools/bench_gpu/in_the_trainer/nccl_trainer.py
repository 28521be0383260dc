"""Sends a model over vLLM's NCCL weight transfer, three times, from the worker's GPU.

    nccl_trainer.py URL CHECKPOINT PORT

Runs in a Python with vLLM for GPUs. Prints the seconds of each update, from pause to resume, as JSON.
Source: `NCCLTrainerWeightTransferEngine` of vLLM 0.32.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
)

_UPDATES = 3


class Files(WeightSource):  # type: ignore[misc]  # vLLM is not there to be checked
    """The tensors of a checkpoint, on the GPU."""

    def __init__(self, folder: Path) -> None:
        self._tensors: list[tuple[str, Any]] = []
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "pt", device="cuda") as opened:
                self._tensors += [(name, opened.get_tensor(name)) for name in opened.keys()]  # noqa: SIM118 - no dict

    def metadata(self) -> list[Any]:
        """Name, type and shape of each."""
        return [ParamMeta(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in self._tensors]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._tensors)


def main(url: str, folder: str, port: int) -> None:
    """Join the worker, and send all weights."""
    torch.cuda.init()
    source, client = Files(Path(folder)), HTTPVLLMWeightSyncClient(url, timeout=60)
    info = NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=port, world_size=2, rank=0)
    engine = NCCLTrainerWeightTransferEngine.trainer_init(info, client=client, source=source)
    seconds = []
    for _ in range(_UPDATES):
        began = time.perf_counter()
        requests.post(f"{url}/pause?mode=keep", timeout=60).raise_for_status()
        engine.send_weights()
        requests.post(f"{url}/resume", timeout=60).raise_for_status()
        seconds.append(time.perf_counter() - began)
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
