"""Facts about the served model that the worker reads from vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet_worker.engine import vllm_facts
from fleet_worker.engine.required_names import UnsupportedEngineError
from fleet_worker.engine.vllm_facts import facts_of


class FakeClient:
    """vLLM's engine client, as far as the worker reads it."""

    def __init__(self, vocabulary: int, last_token: int) -> None:
        config = SimpleNamespace(max_model_len=4096, get_vocab_size=lambda: vocabulary)
        experts = SimpleNamespace(enable_return_routed_experts=True)
        self.vllm_config = SimpleNamespace(model_config=config, aux_output_config=experts)
        self.tokenizer = SimpleNamespace(max_token_id=last_token, added_tokens_decoder={})

    def get_tokenizer(self) -> Any:
        return self.tokenizer


def described(**properties: Any) -> Any:
    return {"components": {"schemas": {"GenerateRequest": {"properties": properties}}}}


@pytest.fixture(autouse=True)
def _fake_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI, which describes routes, is in the engine's environment."""
    monkeypatch.setattr(vllm_facts, "_description", lambda described: described)


TOKENS = described(token_ids={}, sampling_params={"properties": {"max_tokens": {}}})


@pytest.mark.parametrize(("vocabulary", "last_token", "limit"), [(512, 500, 512), (500, 511, 512)])
def test_a_valid_id_is_one_of_the_model_or_the_tokenizer(
    vocabulary: int, last_token: int, limit: int
) -> None:
    facts = facts_of(FakeClient(vocabulary, last_token), TOKENS, lambda: ("policy",))

    assert facts.id_limit == limit
    assert (facts.max_length, facts.routes_experts) == (4096, True)
    assert facts.generate_keys == {"token_ids", "sampling_params"}
    assert facts.sampling_keys == {"max_tokens"}
    assert list(facts.names()) == ["policy"]


@pytest.mark.parametrize(
    "app", [{}, described(), described(token_ids={}, sampling_params={"$ref": "elsewhere"})]
)
def test_an_unexpected_description_of_a_route_is_an_error(app: Any) -> None:
    with pytest.raises(UnsupportedEngineError, match="/inference/v1/generate"):
        facts_of(FakeClient(512, 511), app, tuple)
