"""The version of an adapter that a request gets in the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.records import EngineAdapter
from fleet_worker.engine.vllm_requests import with_adapters
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class VLLMNotFoundError(Exception):
    """As vLLM's."""


class Registry:
    """The served adapters and their requests."""

    def __init__(self) -> None:
        self.served: dict[str, EngineAdapter] = {}
        self.used: list[str] = []

    @contextmanager
    def using(self, name: str) -> Iterator[EngineAdapter]:
        if name not in self.served:
            raise Refusal(Reason.SOURCE_NOT_FOUND, f"{name} is not served any more")
        self.used.append(name)
        try:
            yield self.served[name]
        finally:
            self.used.remove(name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    members = {"VLLMNotFoundError": VLLMNotFoundError}
    lora = {"LoRARequest": LoRARequest}
    install(monkeypatch, {"vllm.lora.request": lora, "vllm.exceptions": members})
    return Registry()


async def generate(
    prompt: Any, sampling_params: Any, request_id: str, **options: Any
) -> AsyncGenerator[Any, None]:
    for _ in range(2):
        yield options.get("lora_request")


async def test_a_request_without_an_adapter_is_unchanged(registry: Registry) -> None:
    outputs = with_adapters(generate, registry.using)("p", None, "1", priority=1)

    assert [output async for output in outputs] == [None, None]


async def test_the_version_is_chosen_when_the_request_reaches_the_engine(
    registry: Registry,
) -> None:
    served = SimpleNamespace(lora_name="tuned", lora_int_id=1, lora_path="/trainers/own")
    registry.served["tuned"] = EngineAdapter("tuned@1", 1001, "/private/1")
    outputs = with_adapters(generate, registry.using)("p", None, "1", lora_request=served)
    registry.served["tuned"] = EngineAdapter("tuned@2", 1002, "/private/2")
    first = await anext(outputs)
    registry.served["tuned"] = EngineAdapter("tuned@3", 1003, "/private/3")
    second = await anext(outputs)

    assert first == second == LoRARequest("tuned@2", 1002, "/private/2")
    assert registry.used == ["tuned"]
    await outputs.aclose()
    assert registry.used == []


async def test_a_request_for_an_adapter_removed_meanwhile_is_404(registry: Registry) -> None:
    served = SimpleNamespace(lora_name="tuned", lora_int_id=1, lora_path="/trainers/own")
    outputs = with_adapters(generate, registry.using)("p", None, "1", lora_request=served)
    with pytest.raises(VLLMNotFoundError, match="not served any more"):
        await anext(outputs)
