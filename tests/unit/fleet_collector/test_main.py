"""One run of the collector's process, without a cluster."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fleet_collector import main
from fleet_collector.settings import Settings


@pytest.fixture
def process() -> Iterator[None]:
    """Takes back what a process sets for itself."""
    root, on_term = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    signal.signal(signal.SIGTERM, on_term)


@pytest.mark.usefixtures("process")
def test_a_run_without_a_rule_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The how-to asks to read what the first run says, and it said nothing."""
    for name in ("load_access", "BlockingKube"):
        monkeypatch.setattr(main, name, lambda *_: None)
    monkeypatch.setattr(main, "collect", lambda *_, **__: [])

    given: Any = {"namespaces": "rl,eval", "roots": "/weights"}  # as in a command line
    code = main.run(Settings(**given))

    assert code == 0
    assert "no WeightVersion in namespace rl has spec.retention" in capsys.readouterr().err
