"""The client over a fake API server, blocking and with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.fake_objects import Call, FakeObjects
from tests.support.rl_api import RlApi, rl_api

from rlfleet import AsyncWeights, Weights
from rlfleet import rl_api as client


def blocking(objects: FakeObjects, method: str, *arguments: Any, **options: Any) -> Any:
    return getattr(Weights("policy", objects=objects), method)(*arguments, **options)


def on_a_loop(objects: FakeObjects, method: str, *arguments: Any, **options: Any) -> Any:
    weights = AsyncWeights("policy", objects=objects)
    return asyncio.run(getattr(weights, method)(*arguments, **options))


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RlApi]:
    monkeypatch.setattr(client, "POLL_SECONDS", 0.01)
    async with rl_api() as made:
        yield made
