"""The public port of a worker that serves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.fake_server import FakePort
from tests.unit.worker.conftest import Bench


@pytest.fixture
async def port(serving: Bench) -> AsyncIterator[FakePort]:
    made = FakePort(serving.agent)
    yield made
    await made.client.aclose()
