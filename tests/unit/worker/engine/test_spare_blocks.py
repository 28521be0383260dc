"""The blocks that the check of a model runs on. vLLM's objects are fakes here; `tests/engine` has real ones."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.spare_blocks import RECURRENT, spare_blocks


class FakeRows:
    """The block table of a group. Slices of its rows are views, as far as they are assigned to as a whole."""

    def __init__(self) -> None:
        self.rows = list(range(11, 21))
        self.block_table = SimpleNamespace(np=self)

    def __getitem__(self, key: slice) -> FakeView:
        return FakeView(self.rows, key)


class FakeView:
    def __init__(self, rows: list[int], where: slice) -> None:
        self._rows, self._where = rows, where

    def copy(self) -> list[int]:
        return self._rows[self._where]

    def __setitem__(self, _all: slice, values: Any) -> None:
        count = len(self.copy())
        self._rows[self._where] = values if isinstance(values, list) else [values] * count


class FakeState(list[Any]):
    """A state of a recurrent layer: one block after the other, each a list of numbers."""

    def __init__(self) -> None:
        super().__init__(FakeBlock([n, n]) for n in range(4))


class FakeBlock(list[int]):
    def clone(self) -> list[int]:
        return list(self)

    def zero_(self) -> None:
        self[:] = [0] * len(self)

    def copy_(self, values: list[int]) -> None:
        self[:] = values


class FakeRecurrent:
    def __init__(self) -> None:
        self.kv_cache = (FakeState(), FakeState())


class FakeWorker:
    """A worker with a hybrid model: two groups of recurrent layers, one of attention, and one of an encoder without a table."""

    def __init__(self) -> None:
        self.tables = [FakeRows() for _ in range(3)]
        self.committed: list[list[list[int]]] = []
        block_table = SimpleNamespace(block_tables=self.tables, commit_block_table=self._commit)
        self.layers: dict[str, Any] = {
            "mamba": FakeRecurrent(),
            "attention": SimpleNamespace(kv_cache=FakeState()),
            "gdn": FakeRecurrent(),
            "encoder": SimpleNamespace(),
        }
        groups = [SimpleNamespace(layer_names=[name]) for name in self.layers]
        self.model_runner = SimpleNamespace(
            input_batch=SimpleNamespace(block_table=block_table),
            kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        )
        compilation = SimpleNamespace(static_forward_context=self.layers)
        self.vllm_config = SimpleNamespace(compilation_config=compilation)

    def _commit(self, _rows: int) -> None:
        self.committed.append([list(each.rows) for each in self.tables])


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    install(monkeypatch, {RECURRENT: {"MambaBase": FakeRecurrent}})
    return FakeWorker()


def no_device() -> None:
    """Nothing to wait for."""


HELD = list(range(11, 21))


def test_each_recurrent_group_has_a_block_of_its_own_and_attention_that_of_no_request(
    worker: FakeWorker,
) -> None:
    with spare_blocks(worker, 8, wait=no_device):
        rows = [each.rows for each in worker.tables]

        assert rows == [[1] * 8 + [19, 20], [0] * 8 + [19, 20], [2] * 8 + [19, 20]]


def test_the_states_on_these_blocks_begin_with_zeros_and_get_their_values_back(
    worker: FakeWorker,
) -> None:
    states = {1: worker.layers["mamba"].kv_cache, 2: worker.layers["gdn"].kv_cache}
    with spare_blocks(worker, 8, wait=no_device):
        for block, of_layer in states.items():
            for state in of_layer:
                assert state[block] == [0, 0]
                assert sum(map(sum, state)) == 2 * (6 - block)
                state[block][:] = [7, 7]

    for of_layer in states.values():
        assert all(state == FakeState() for state in of_layer)


@pytest.mark.parametrize("fails", [False, True])
def test_the_rows_of_held_requests_come_back_after_the_device_is_done(
    worker: FakeWorker,
    fails: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    waited: list[list[int]] = []
    with (
        pytest.raises(RuntimeError) if fails else nullcontext(),
        spare_blocks(worker, 8, wait=lambda: waited.append(list(worker.tables[0].rows))),
    ):
        if fails:
            raise RuntimeError("no kernel")

    assert waited == [[1] * 8 + [19, 20]]
    assert worker.committed == [[HELD] * 3]


def test_nothing_changes_if_a_state_cannot_be_kept(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(_: FakeBlock) -> list[int]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeBlock, "clone", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        spare_blocks(worker, 8, wait=no_device).__enter__()

    assert [each.rows for each in worker.tables] == [HELD] * 3


def test_a_runner_with_tables_of_its_own_for_dummy_batches_is_left_alone() -> None:
    with spare_blocks(SimpleNamespace(model_runner=SimpleNamespace()), 8, wait=no_device):
        pass
