"""The blocks of the cache that the check of a model runs on: none that a request needs.

A dummy batch of vLLM has the first rows of the block tables, which are those of held requests. Attention
reads the blocks of these rows, and writes none. Recurrent layers (Mamba, GDN) update the state in them, and
the requests would continue with it.

Attention gets the block that vLLM keeps for no request. Kernels of recurrent layers skip that block, and
leave their output uninitialised. So each group of such layers gets a block of its own, with zeros as its
state, and the block gets its values back.

Source: `MambaBase`, `NULL_BLOCK_ID` and `GPUModelRunner._dummy_run`, vLLM 0.32.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

RECURRENT = "vllm.model_executor.layers.mamba.abstract"
_NO_REQUEST = 0


@contextmanager
def spare_blocks(worker: Any, sequences: int, *, wait: Callable[[], None]) -> Iterator[None]:
    """Point the sequences of a dummy batch at these blocks.

    Args:
        worker: vLLM's worker, in the engine's process.
        sequences: The most sequences in the batch.
        wait: Waits for the device.
    """
    # vLLM's second runner (v1.worker.gpu.model_runner) has tables of its own for dummy batches.
    batch = getattr(worker.model_runner, "input_batch", None)
    tables = batch.block_table.block_tables if batch else []
    rows = [each.block_table.np[:sequences] for each in tables]
    before = [each.copy() for each in rows]
    # Groups without a table, such as those of encoders, come last.
    groups = list(_states_of_groups(worker))[: len(rows)] if rows else []
    spare = count(_NO_REQUEST + 1)
    blocks = [next(spare) if group else _NO_REQUEST for group in groups]
    states = [s[block] for group, block in zip(groups, blocks, strict=True) for s in group]
    kept = [each.clone() for each in states]
    try:
        for each, block in zip(rows, blocks, strict=True):
            each[:] = block
        for each in states:
            each.zero_()
        yield
    finally:
        wait()  # the device may still copy the rows
        for each, values in zip(rows, before, strict=True):
            each[:] = values
        for each, values in zip(states, kept, strict=True):
            each.copy_(values)
        if batch:
            batch.block_table.commit_block_table(sequences)


def _states_of_groups(worker: Any) -> Iterator[list[Any]]:
    """Yield the states of the recurrent layers of each group of the cache: tensors by block."""
    kind = importlib.import_module(RECURRENT).MambaBase
    layers = worker.vllm_config.compilation_config.static_forward_context
    for group in worker.model_runner.kv_cache_config.kv_cache_groups:
        found = (layers[name] for name in group.layer_names)
        yield [state for layer in found if isinstance(layer, kind) for state in layer.kv_cache]
