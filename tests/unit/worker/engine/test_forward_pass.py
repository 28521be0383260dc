"""The options of a forward pass for vLLM's runners, and its result.

`tests/engine/test_architectures.py` and `test_second_runner.py` have real runners with recurrent layers, whose held
requests go on as if nothing had been, also after a pass that failed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.forward_pass import forward_pass
from fleet_worker.engine.vllm_names import FIRST_RUNNER, RECURRENT, SECOND_RUNNER


class FakeRunner:
    """The parts of both runners, without layers that keep a state."""

    kv_cache_config = SimpleNamespace(kv_cache_groups=[])

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.returns: tuple[Any, Any] = ("output", "hidden")
        tables = SimpleNamespace(block_tables=[], commit_block_table=lambda rows: None)
        self.input_batch = SimpleNamespace(block_table=tables)

    def execute_model(self) -> str:
        return "executed"

    def prepare_dummy_attn(self) -> None: ...

    def _dummy_run(self, tokens: int, **options: Any) -> tuple[Any, Any]:
        self.asked = {"tokens": tokens, **options}
        self.execute_model()
        return self.returns


class FakeSecondRunner(FakeRunner): ...


FakeRunner.__module__, FakeSecondRunner.__module__ = FIRST_RUNNER, SECOND_RUNNER


@pytest.fixture(params=[FakeRunner, FakeSecondRunner])
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch, {RECURRENT: {"MambaBase": FakeRunner}})
    compilation = SimpleNamespace(static_forward_context={})
    config = SimpleNamespace(compilation_config=compilation)
    return SimpleNamespace(model_runner=request.param(), vllm_config=config)


def test_the_tokens_are_random_and_those_of_requests_not_padding(worker: Any) -> None:
    """Padding reaches no expert, so that a broken one would pass."""
    forward_pass(worker, 8, wait=lambda: None)
    asked = worker.model_runner.asked

    assert asked["tokens"] == 8
    assert asked["is_profile"] is asked["randomize_inputs"] is asked["force_attention"] is True


def test_a_stage_whose_dummy_run_returns_nothing_gives_what_it_executes(worker: Any) -> None:
    assert forward_pass(worker, 8, wait=lambda: None) == ("output", "hidden")
    worker.model_runner.returns = None, None

    assert forward_pass(worker, 8, wait=lambda: None) == ("executed", None)
