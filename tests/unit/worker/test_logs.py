"""Log lines."""

from __future__ import annotations

import json
import logging

import pytest

from fleet_worker.runtime import logs


def line_of(
    record_extra: dict[str, object] | None = None, *, error: bool = False
) -> dict[str, object]:
    record = logging.LogRecord("fleet_worker.x", logging.INFO, "f", 1, "version %s", ("7",), None)
    for key, value in (record_extra or {}).items():
        setattr(record, key, value)
    if error:
        record.exc_info = (ValueError, ValueError("broken"), None)
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    return dict(json.loads(line))


def test_a_line_is_one_object_with_time_level_and_message() -> None:
    line = line_of()

    assert line["message"] == "version 7"
    assert line["level"] == "info"
    assert str(line["time"]).endswith("+00:00")


def test_the_fields_of_an_event_stand_beside_its_message() -> None:
    line = line_of(logs.fields("loaded", version="7", nothing=None))

    assert (line["event"], line["version"]) == ("loaded", "7")
    assert "nothing" not in line


def test_an_error_is_in_the_line() -> None:
    assert "ValueError: broken" in str(line_of(error=True)["error"])


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_setting_up_twice_logs_once(
    log_format: logs.LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("fleet_worker")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        logs.set_up(log_format, "info")
        logs.set_up(log_format, "info")
        logging.getLogger("fleet_worker.x").info("hello")
        logging.getLogger("fleet_worker.x").debug("not this")
    finally:
        logger.handlers, logger.level, logger.propagate = before

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "hello" in lines[0]
