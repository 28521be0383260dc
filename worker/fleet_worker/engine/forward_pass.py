"""A forward pass over dummy tokens, which changes no block of the cache that a request needs.

Of vLLM's two runners the first gives a dummy batch the first rows of the block tables, which are those of held
requests. The second gives it tables of its own.

Attention reads the blocks in these rows, and writes none. It gets the block that vLLM keeps for no request.
Recurrent layers (Mamba, GDN) update the state in their block, and held requests would continue with it. Kernels
of GPUs skip the block of no request, and leave their output uninitialised. So each group of such layers gets a
block of its own, with zeros as its state, and the block gets its values back.

Source: `MambaBase`, `NULL_BLOCK_ID`, `GPUModelRunner._dummy_run` and `GPUModelRunner.prepare_dummy_attn` of vLLM.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any

from fleet_worker.engine.required_names import runner_of
from fleet_worker.engine.vllm_names import RECURRENT, SECOND_RUNNER

_NO_REQUEST = 0


def forward_pass(worker: Any, tokens: int, *, wait: Callable[[], None]) -> tuple[Any, Any]:
    """Run dummy tokens through the model.

    Args:
        worker: vLLM's worker, in the engine's process. Its scheduler is paused.
        tokens: How many, each a sequence of its own as far as vLLM allows.
        wait: Waits for the device.

    Returns:
        The stage's output, and the hidden states of the last token of each sequence. Only the last stage of a
        pipeline has those.
    """
    runner = worker.model_runner
    given: list[Any] = []

    def recorded(*arguments: Any, **named: Any) -> Any:
        given.append(execute(*arguments, **named))
        return given[-1]

    execute = runner.execute_model
    # A token of padding reaches no expert, and vLLM takes those of a profile for tokens of a request. Such a
    # run is eager. Without attention its output would be uninitialised memory on CPUs.
    options = {"force_attention": True, "skip_eplb": True, "randomize_inputs": True}
    options |= {"is_profile": True}
    if runner_of(worker) == SECOND_RUNNER:
        # Otherwise recurrent layers take no part in a profile.
        options |= {"valid_dummy_state_slots": True}
    with _spare_blocks(worker, tokens, wait), _replaced(runner, "execute_model", recorded):
        output, hidden = runner._dummy_run(tokens, **options)  # noqa: SLF001 - there is no public way
    # The second runner returns no tensors for the next stage.
    return (output if output is not None else next(iter(given), None)), hidden


@contextmanager
def _spare_blocks(worker: Any, sequences: int, wait: Callable[[], None]) -> Iterator[None]:
    groups = list(_states_of_groups(worker))
    spare = count(_NO_REQUEST + 1)
    blocks = [next(spare) if group else _NO_REQUEST for group in groups]
    states = [s[block] for group, block in zip(groups, blocks, strict=True) for s in group]
    kept = [each.clone() for each in states]
    with _pointed(worker, sequences, blocks):
        try:
            for each in states:
                each.zero_()
            yield
        finally:
            wait()  # the device may still copy the rows
            for each, values in zip(states, kept, strict=True):
                each.copy_(values)


def _pointed(worker: Any, sequences: int, blocks: Sequence[int]) -> AbstractContextManager[None]:
    """Point the rows of a dummy batch at the block of each group of the cache."""
    runner = worker.model_runner
    if runner_of(worker) == SECOND_RUNNER:
        return _pointed_in_second(runner, blocks)
    return _pointed_in_first(runner.input_batch.block_table, sequences, blocks)


@contextmanager
def _pointed_in_first(table: Any, sequences: int, blocks: Sequence[int]) -> Iterator[None]:
    rows = [each.block_table.np[:sequences] for each in table.block_tables]
    before = [each.copy() for each in rows]
    try:
        # Groups without a table, such as those of encoders, come last.
        for each, block in zip(rows, blocks, strict=False):
            each[:] = block
        yield
    finally:
        for each, values in zip(rows, before, strict=True):
            each[:] = values
        table.commit_block_table(sequences)


@contextmanager
def _pointed_in_second(runner: Any, blocks: Sequence[int]) -> Iterator[None]:
    pointed: list[Any] = []

    def prepared(*arguments: Any, **named: Any) -> Any:
        tables, slots = prepare(*arguments, **named)
        for table, block in zip(tables, blocks, strict=True):
            pointed.append(table)
            table.fill_(block)
        return tables, slots

    prepare = runner.prepare_dummy_attn
    try:
        with _replaced(runner, "prepare_dummy_attn", prepared):
            yield
    finally:
        for each in pointed:
            each.fill_(_NO_REQUEST)


@contextmanager
def _replaced(thing: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """Put a function in front of a method of an object's class."""
    setattr(thing, name, by)
    try:
        yield
    finally:
        delattr(thing, name)


def _states_of_groups(worker: Any) -> Iterator[list[Any]]:
    """Yield the states of the recurrent layers of each group of the cache: tensors by block."""
    kind = importlib.import_module(RECURRENT).MambaBase
    layers = worker.vllm_config.compilation_config.static_forward_context
    for group in worker.model_runner.kv_cache_config.kv_cache_groups:
        found = (layers[name] for name in group.layer_names)
        yield [state for layer in found if isinstance(layer, kind) for state in layer.kv_cache]
