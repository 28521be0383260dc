"""GPUs, memory and storage of a first fleet, from the size of its model: pure.

The rules are those of docs/how-to/size-a-fleet.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_GPU_SHARE = 0.75
"""Of a GPU's memory, for weights. The rest is for keys and values of requests."""
_GIB = 2**30
_ENGINE_GIB, _PROCESS_GIB = 4, 4
"""Of vLLM itself, and of each of its processes for a GPU."""
_CPU_ENGINE_GIB, CPU_CACHE_GIB = 3, 1
_VERSIONS = 10
"""That a new claim has room for, next to the model."""
_LEAST_STORAGE_GIB = 10
_LONGEST = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one worker, and of the claim. Sizes are in GiB.

    Fields:
        longest: the longest sequence that a worker takes, in tokens; None for that of the model.
    """

    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    memory: int
    staging: int
    storage: int
    longest: int | None


def gpus_for(checkpoint_bytes: int, gpu_gb: float) -> int:
    """The least power of two whose GPUs hold the weights. `gpu_gb`: memory of one, in 10^9 bytes."""
    needed = checkpoint_bytes / (gpu_gb * 1e9 * _GPU_SHARE)
    return 2 ** max(0, math.ceil(math.log2(needed))) if needed > 0 else 1


def sizes(
    checkpoint_bytes: int, gpus: int, *, heads: int | None = None, longest: int | None = None
) -> Sizes:
    """The sizes for a number of GPUs; for 0, those of a worker on a CPU.

    vLLM divides the heads of attention evenly. A factor of the GPUs that does not divide them becomes stages of a
    pipeline.
    """
    model = math.ceil(checkpoint_bytes / _GIB)
    staging = math.ceil(2 * checkpoint_bytes / _GIB)  # the staged version and the last good one
    tensor = max(
        (n for n in range(1, gpus + 1) if gpus % n == 0 and (heads or gpus) % n == 0), default=1
    )
    memory = staging + (
        _ENGINE_GIB + _PROCESS_GIB * gpus if gpus else _CPU_ENGINE_GIB + CPU_CACHE_GIB + model
    )
    return Sizes(
        gpus=gpus,
        tensor_parallel=tensor,
        pipeline_parallel=max(1, gpus // tensor),
        memory=memory,
        staging=staging,
        storage=max(_LEAST_STORAGE_GIB, (1 + _VERSIONS) * model),
        longest=None if longest is None else min(longest, _LONGEST),
    )
