"""The tensors of numpy and torch as bytes, with the names that their types have in safetensors.

torch is not imported: a tensor of torch brings it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from rlfleet.errors import UnusableWeights
from rlfleet_resources.weight_files import DTYPES

Bytes = npt.NDArray[np.uint8]
"""Raw little-endian bytes, in one dimension."""

_TYPES = {each.torch: name for name, each in DTYPES.items() if each.torch} | {"complex64": "C64"}


def signature_of(name: str, tensor: Any) -> tuple[str, tuple[int, ...]]:
    """The type and the shape of a tensor. Errors: UnusableWeights."""
    if hasattr(tensor, "full_tensor"):
        raise UnusableWeights(
            f"{name} is a part of a sharded tensor; gather it first, for FSDP with "
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), "
            "or save it with torch.distributed.checkpoint's HuggingFaceStorageWriter(…, save_distributed=True, "
            "enable_consolidation=True) and give directory="
        )
    if getattr(getattr(tensor, "device", None), "type", "") == "meta":
        raise UnusableWeights(f"{name} has no data (device meta); load or gather it first")
    found = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if found not in _TYPES:
        raise UnusableWeights(
            f"{name} is of type {found}, which safetensors or rlfleet does not know; leave it out, or "
            "save the checkpoint and give directory="
        )
    return _TYPES[found], tuple(int(size) for size in tensor.shape)


def bytes_of(tensor: Any) -> Bytes:
    """The bytes of a tensor, which they may share."""
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    found: Bytes = flat.view(sys.modules["torch"].uint8).numpy()
    return found


def checksum(data: Bytes) -> str:
    """The XXH3 checksum of bytes, with 128 bits and in hex."""
    return xxhash.xxh3_128_hexdigest(data.data)
