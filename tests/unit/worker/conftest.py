"""Workers over a fake engine, in the phases that most tests begin with."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.admin_ports import OperatorPort, TrainerPort
from tests.support.fake_server import FakePort
from tests.support.stagers import InspectorWithStagers
from tests.support.worker_harness import TrainerHarness, WorkerHarness, start_worker

from fleet_worker.trainer.transfers import TransferRoom


@pytest.fixture(autouse=True)
def _import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a worker, such as stagers, find our packages."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def inspector() -> Iterator[InspectorWithStagers]:
    """Reads the bytes of versions in real stagers."""
    made = InspectorWithStagers()
    yield made
    made.stagers.close()


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad sources are read twice; in these tests without a wait in between."""
    monkeypatch.setattr("fleet_worker.checkpoint.completeness._POLL_SECONDS", 0.0)


@pytest.fixture
async def joining(tmp_path: Path) -> AsyncIterator[WorkerHarness]:
    """A worker whose engine has come up."""
    async with start_worker(tmp_path) as harness:
        yield harness


@pytest.fixture
async def serving(joining: WorkerHarness) -> WorkerHarness:
    """A worker that was admitted on the model's own weights; its engine's calls begin here."""
    await joining.admit("base")
    joining.engine.calls.clear()
    return joining


@pytest.fixture
async def trainer(serving: WorkerHarness) -> TrainerHarness:
    return TrainerHarness.of(serving)


@pytest.fixture
async def admin(serving: WorkerHarness, tmp_path: Path) -> AsyncIterator[OperatorPort]:
    token_file = tmp_path / "token"
    token_file.write_text("right\n")
    made = OperatorPort(serving, token_file)
    yield made
    await made.client.aclose()


@pytest.fixture
async def port(serving: WorkerHarness) -> AsyncIterator[FakePort]:
    """The public port of a worker that serves."""
    made = FakePort(serving.agent)
    yield made
    await made.client.aclose()


@pytest.fixture
async def trainer_port(serving: WorkerHarness, tmp_path: Path) -> AsyncIterator[TrainerPort]:
    """The admin port of a worker that serves, with the routes of all trainers."""
    made = TrainerPort(serving, tmp_path)
    yield made
    await made.client.aclose()


@pytest.fixture
async def transfer_port(serving: WorkerHarness, tmp_path: Path) -> AsyncIterator[TrainerPort]:
    """The same of a worker that may take weights over a collective."""
    made = TrainerPort(serving, tmp_path, room=TransferRoom("own"))
    yield made
    await made.client.aclose()
