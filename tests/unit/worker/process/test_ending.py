"""The end of the process, also with an engine whose requests do not end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.fake_engine import FakeEngine

from fleet_worker.errors import EngineFailure
from fleet_worker.lifecycle import quiesce
from fleet_worker.lifecycle.quiesce import Quiescence
from fleet_worker.process import ending
from fleet_worker.process.ending import Ending


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], threading.Event]:
    """Codes that the process would have been ended with by force."""
    codes: list[int] = []
    happened = threading.Event()

    def note(code: int) -> None:
        codes.append(code)
        happened.set()

    monkeypatch.setattr(ending, "end_now", note)
    return codes, happened


def test_the_first_end_counts_and_stops_the_server(forced: Any) -> None:
    stopped: list[bool] = []
    end = Ending()
    end.on_begin(lambda: stopped.append(True))
    end.begin(0, "drained", patience_seconds=60)
    end.begin(1, "the engine died", patience_seconds=60)

    assert end.code == 0
    assert stopped == [True]
    assert forced[0] == []


def test_a_server_that_does_not_stop_is_killed(forced: Any) -> None:
    end = Ending()
    end.begin(1, "the engine died", patience_seconds=0.01)

    assert forced[1].wait(5)
    assert forced[0] == [1]


@pytest.mark.parametrize(("code", "level"), [(0, "INFO"), (1, "ERROR")])
def test_the_reason_of_the_end_is_logged(
    forced: Any, caplog: pytest.LogCaptureFixture, code: int, level: str
) -> None:
    caplog.set_level("INFO")
    Ending().begin(code, "for a reason", patience_seconds=60)

    assert [(r.levelname, "for a reason" in r.getMessage()) for r in caplog.records] == [
        (level, True)
    ]


class Stubborn(FakeEngine):
    """Keeps a request despite every abort."""

    def unfinished(self) -> int:
        return 1


async def test_an_engine_whose_requests_do_not_end_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quiesce, "_PATIENCE_SECONDS", 0.05)
    engine = Stubborn()
    with pytest.raises(EngineFailure, match="does not end its requests"):
        await Quiescence().reach(engine)

    assert engine.calls.count("pause abort") > 1


async def test_a_client_that_does_not_read_its_reply_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(quiesce, "_PATIENCE_SECONDS", 0.05)
    quiescence = Quiescence()
    quiescence.inside = 2
    await quiescence.reach(FakeEngine())

    assert "still reading: 2" in caplog.text
