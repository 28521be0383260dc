"""Asking vLLM about the model that it serves, and about what it takes in a request of tokens.

The keys come from the application's own description (as `/openapi.json` shows it): vLLM's classes
move from module to module, the description of its routes does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleet_worker.adapters.engine_names import UnsupportedEngineError
from fleet_worker.adapters.vocabulary import TokenizerVocabulary
from fleet_worker.core.model_facts import Facts
from fleet_worker.core.routes import TOKEN_ROUTE

_SCHEMA = "GenerateRequest"


def _description(app: Any) -> dict[str, Any]:
    """The OpenAPI document of the token route alone; that of all routes takes a second to make."""
    from fastapi.openapi.utils import get_openapi  # noqa: PLC0415 - comes with vLLM

    routes = [each for each in app.routes if getattr(each, "path", None) == TOKEN_ROUTE]
    return dict(get_openapi(title="vLLM", version="", routes=routes))


def facts_of(client: Any, app: Any, names: Callable[[], Sequence[str]]) -> Facts:
    """Everything that the data surfaces need to know.

    Args:
        client: vLLM's engine client.
        app: vLLM's application.
        names: The models that requests may name.

    Errors:
        UnsupportedEngineError: this vLLM describes its token route otherwise.
    """
    tokenizer = client.get_tokenizer()
    config = client.vllm_config.model_config
    schemas = _description(app).get("components", {}).get("schemas", {})
    schema = schemas.get(_SCHEMA, {}).get("properties", {})
    sampling = schema.get("sampling_params", {}).get("properties", {})
    if not sampling:
        raise UnsupportedEngineError(
            f"vLLM does not describe /inference/v1/generate as {_SCHEMA} with sampling_params"
        )
    return Facts(
        names=names,
        max_length=int(config.max_model_len),
        # As vLLM judges ids: some models have more than their tokenizer, and some fewer.
        id_limit=max(int(config.get_vocab_size()), int(tokenizer.max_token_id) + 1),
        vocabulary=TokenizerVocabulary(tokenizer),
        generate_keys=frozenset(schema),
        sampling_keys=frozenset(sampling),
        routes_experts=bool(client.vllm_config.aux_output_config.enable_return_routed_experts),
    )
