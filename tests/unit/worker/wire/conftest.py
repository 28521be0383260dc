"""The public port of a worker that serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.fake_server import FakePort
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port


@pytest.fixture
async def port(serving: Bench) -> AsyncIterator[FakePort]:
    made = FakePort(serving.agent)
    yield made
    await made.client.aclose()


@pytest.fixture
async def control(serving: Bench, tmp_path: Path) -> AsyncIterator[Port]:
    made = Port(serving, tmp_path)
    yield made
    await made.client.aclose()
