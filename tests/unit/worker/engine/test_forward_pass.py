"""The forward pass of a check, on both runners of vLLM. They are fakes here; `tests/engine` has real ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.forward_pass import forward_pass
from fleet_worker.engine.vllm_names import FIRST_RUNNER, RECURRENT, SECOND_RUNNER


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


HELD = list(range(11, 21))


class FakeRunner:
    """The parts of both runners, with four groups in the cache: the last is an encoder's."""

    def __init__(self, layers: dict[str, Any]) -> None:
        groups = [SimpleNamespace(layer_names=[name]) for name in layers]
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=groups)
        self.layers = layers
        self.asked: dict[str, Any] = {}
        self.returns: tuple[Any, Any] = ("output", "hidden")
        self.during: Callable[[], None] = lambda: None

    def execute_model(self) -> str:
        self.during()
        return "executed"


class FakeFirstRunner(FakeRunner):
    """Has the tables of held requests, and uses them for dummy batches, too. An encoder has none."""

    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__(layers)
        self.tables = [FakeRows() for _ in range(3)]
        self.committed: list[list[list[int]]] = []
        block_table = SimpleNamespace(block_tables=self.tables, commit_block_table=self._commit)
        self.input_batch = SimpleNamespace(block_table=block_table)

    def _dummy_run(self, tokens: int, **options: Any) -> tuple[Any, Any]:
        self.asked = {"tokens": tokens, **options}
        self.execute_model()
        return self.returns

    def rows(self) -> list[list[int]]:
        return [each.rows[:8] for each in self.tables]

    def _commit(self, _rows: int) -> None:
        self.committed.append([list(each.rows) for each in self.tables])


class FakeTable(list[int]):
    def fill_(self, block: int) -> None:
        self[:] = [block] * len(self)


class FakeSecondRunner(FakeRunner):
    """Has tables of its own for dummy batches, one for each group, and points them at the first blocks."""

    def __init__(self, layers: dict[str, Any]) -> None:
        super().__init__(layers)
        self.tables = [FakeTable([0] * 8) for _ in layers]

    def prepare_dummy_attn(self, _batch: Any, valid_state_slots: bool = False) -> Any:
        for each in self.tables:
            each[:] = range(1, 9) if valid_state_slots else [0] * 8
        return tuple(self.tables), "slots"

    def _dummy_run(self, tokens: int, **options: Any) -> tuple[Any, Any]:
        self.asked = {"tokens": tokens, **options}
        assert self.prepare_dummy_attn("batch", options["valid_dummy_state_slots"])[1] == "slots"
        self.execute_model()
        return self.returns

    def rows(self) -> list[list[int]]:
        return [list(each) for each in self.tables[:3]]


FakeFirstRunner.__module__ = FIRST_RUNNER
FakeSecondRunner.__module__ = SECOND_RUNNER


class FakeWorker:
    """A worker with a hybrid model: two groups of recurrent layers, one of attention, and one of an encoder."""

    def __init__(self, runner: type[FakeFirstRunner | FakeSecondRunner]) -> None:
        self.layers: dict[str, Any] = {
            "mamba": FakeRecurrent(),
            "attention": SimpleNamespace(kv_cache=FakeState()),
            "gdn": FakeRecurrent(),
            "encoder": SimpleNamespace(),
        }
        self.model_runner = runner(self.layers)
        compilation = SimpleNamespace(static_forward_context=self.layers)
        self.vllm_config = SimpleNamespace(compilation_config=compilation)

    def states(self) -> dict[int, Any]:
        """The states of the recurrent layers, by the spare block of their group."""
        return {1: self.layers["mamba"].kv_cache, 2: self.layers["gdn"].kv_cache}


@pytest.fixture(params=[FakeFirstRunner, FakeSecondRunner])
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    install(monkeypatch, {RECURRENT: {"MambaBase": FakeRecurrent}})
    return FakeWorker(request.param)


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    install(monkeypatch, {RECURRENT: {"MambaBase": FakeRecurrent}})
    return FakeWorker(FakeFirstRunner)


def no_device() -> None:
    """Nothing to wait for."""


def test_each_recurrent_group_has_a_block_of_its_own_and_attention_that_of_no_request(
    worker: FakeWorker,
) -> None:
    runner, seen = worker.model_runner, []
    runner.during = lambda: seen.append(runner.rows())
    forward_pass(worker, 8, wait=no_device)

    assert seen == [[[1] * 8, [0] * 8, [2] * 8]]


def test_the_states_on_these_blocks_begin_with_zeros_and_get_their_values_back(
    worker: FakeWorker,
) -> None:
    ran: list[bool] = []

    def run() -> None:
        ran.append(True)
        for block, of_layer in worker.states().items():
            for state in of_layer:
                assert state[block] == [0, 0]
                assert sum(map(sum, state)) == 2 * (6 - block)
                state[block][:] = [7, 7]

    worker.model_runner.during = run
    forward_pass(worker, 8, wait=no_device)

    assert ran
    for of_layer in worker.states().values():
        assert all(state == FakeState() for state in of_layer)


@pytest.mark.parametrize("fails", [False, True])
def test_the_rows_come_back_after_the_device_is_done(worker: FakeWorker, fails: bool) -> None:
    runner, waited = worker.model_runner, []

    def run() -> None:
        if fails:
            raise RuntimeError("no kernel")

    runner.during = run
    with pytest.raises(RuntimeError) if fails else nullcontext():
        forward_pass(worker, 8, wait=lambda: waited.append(runner.rows()))

    assert waited == [[[1] * 8, [0] * 8, [2] * 8]]
    assert runner.rows() in ([HELD[:8]] * 3, [[0] * 8] * 3)
    assert not {"execute_model", "prepare_dummy_attn"} & set(vars(runner))


def test_the_first_runner_gets_the_rows_of_held_requests_back_on_the_device(
    first: FakeWorker,
) -> None:
    forward_pass(first, 8, wait=no_device)

    assert isinstance(first.model_runner, FakeFirstRunner)
    assert first.model_runner.committed == [[HELD] * 3]


def test_nothing_changes_if_a_state_cannot_be_kept(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(_: FakeBlock) -> list[int]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeBlock, "clone", out_of_memory)
    before = worker.model_runner.rows()
    with pytest.raises(RuntimeError, match="out of memory"):
        forward_pass(worker, 8, wait=no_device)

    assert worker.model_runner.rows() == before
    assert worker.model_runner.asked == {}


def test_the_tokens_are_random_and_those_of_requests_not_padding(worker: FakeWorker) -> None:
    """Padding reaches no expert, so that a broken one would pass."""
    forward_pass(worker, 8, wait=no_device)
    asked = worker.model_runner.asked

    assert asked["tokens"] == 8
    assert asked["is_profile"] is asked["randomize_inputs"] is asked["force_attention"] is True


def test_a_stage_whose_dummy_run_returns_nothing_gives_what_it_executes(worker: FakeWorker) -> None:
    assert forward_pass(worker, 8, wait=no_device) == ("output", "hidden")
    worker.model_runner.returns = None, None

    assert forward_pass(worker, 8, wait=no_device) == ("executed", None)
