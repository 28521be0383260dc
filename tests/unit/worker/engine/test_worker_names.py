"""The check for the names on vLLM's worker object, with each of its runners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_worker.engine.required_names import missing_on
from fleet_worker.engine.vllm_names import FIRST_RUNNER, SECOND_RUNNER


class FakeRunner:
    kv_cache_config = None

    def __init__(self) -> None:
        self.model = SimpleNamespace(load_weights=lambda w: None, compute_logits=lambda h: None)

    def reload_weights(self, weights_iterator: Any) -> None: ...
    def _dummy_run(self, num_tokens: int, **options: Any) -> None: ...
    def get_model(self) -> None: ...


class FakeFirstRunner(FakeRunner):
    def __init__(self) -> None:
        super().__init__()
        tables = SimpleNamespace(block_tables=[], commit_block_table=lambda rows: None)
        self.input_batch = SimpleNamespace(block_table=tables)

    def execute_model(self) -> None: ...


class FakeSecondRunner(FakeRunner):
    def prepare_dummy_attn(self, input_batch: Any, valid_state_slots: bool) -> None: ...
    def execute_model(self, is_profile: bool, valid_dummy_state_slots: bool) -> None: ...


FakeFirstRunner.__module__ = FIRST_RUNNER
FakeSecondRunner.__module__ = SECOND_RUNNER


class FakeDerivedRunner(FakeFirstRunner):
    """That of another device."""


def worker_with(runner: FakeRunner) -> Any:
    return SimpleNamespace(
        reload_weights=lambda: None,
        weight_transfer_engine=None,
        _weight_update_active=False,
        init_weight_transfer_engine=lambda init_info: None,
        shutdown_weight_transfer_engine=lambda: None,
        start_weight_update=lambda: None,
        update_weights=lambda update_info: None,
        finish_weight_update=lambda: None,
        add_lora=lambda lora_request: None,
        remove_lora=lambda lora_id: None,
        list_loras=lambda: None,
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(quantization=None),
            parallel_config=SimpleNamespace(enable_eplb=False),
            compilation_config=SimpleNamespace(static_forward_context={}),
        ),
        model_runner=runner,
    )


@pytest.mark.parametrize("runner", [FakeFirstRunner, FakeSecondRunner, FakeDerivedRunner])
def test_each_runner_with_its_names_passes(runner: type[FakeRunner]) -> None:
    assert missing_on(worker_with(runner())) == []


def test_a_missing_name_and_a_missing_parameter_are_named() -> None:
    runner: Any = FakeFirstRunner()
    del runner.model.compute_logits
    runner._dummy_run = lambda num_tokens: None

    assert [name.partition("(")[0] for name in missing_on(worker_with(runner))] == [
        "model_runner._dummy_run",
        "model_runner.model.compute_logits",
    ]


def test_the_tables_of_the_first_runner_are_missing_if_they_are_gone() -> None:
    runner: Any = FakeFirstRunner()
    del runner.input_batch

    assert missing_on(worker_with(runner)) == [
        "model_runner.input_batch.block_table.block_tables()",
        "model_runner.input_batch.block_table.commit_block_table()",
    ]


def test_state_slots_that_the_second_runner_no_longer_gives_are_missing() -> None:
    """Its `_dummy_run` takes any parameter, and would drop this one without an error."""
    runner: Any = FakeSecondRunner()
    runner.execute_model = lambda is_profile: None

    assert missing_on(worker_with(runner)) == [
        "model_runner.execute_model(is_profile, valid_dummy_state_slots)"
    ]


def test_a_runner_of_neither_kind_is_refused() -> None:
    (missing,) = missing_on(worker_with(FakeRunner()))

    assert FIRST_RUNNER in missing
    assert SECOND_RUNNER in missing
