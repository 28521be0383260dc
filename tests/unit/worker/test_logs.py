"""One JSON object a line. A line can be read, no matter what is logged."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import pytest

from fleet_worker import logs


def line_of(extra: dict[str, object] | None = None, **always: str) -> dict[str, object]:
    record = logging.LogRecord("fleet_worker.x", logging.INFO, "f", 1, "version %s", ("7",), None)
    record.__dict__.update(extra or {})
    line = logs.json_formatter(**always).format(record)
    assert "\n" not in line
    return dict(json.loads(line))


def test_each_line_has_a_timestamp_in_utc_a_level_a_logger_and_a_message() -> None:
    line = line_of()

    at = datetime.fromisoformat(str(line.pop("timestamp")))
    assert at.utcoffset() == UTC.utcoffset(at)
    assert line == {"level": "INFO", "logger": "fleet_worker.x", "message": "version 7"}


def test_fields_are_next_to_the_message_and_those_without_a_value_are_absent() -> None:
    line = line_of(logs.fields("loaded", version="7", nothing=None))

    assert (line["event"], line["version"]) == ("loaded", "7")
    assert "nothing" not in line


def test_each_line_has_the_fields_of_its_process() -> None:
    assert line_of(pod="policy-0")["pod"] == "policy-0"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="an object"),
        pytest.param("two\nlines", id="two lines"),
        pytest.param("\udc80", id="half a character"),
        pytest.param({"a": {1, 2}}, id="a set"),
    ],
)
def test_a_value_of_any_type_can_be_written(value: object) -> None:
    assert line_of({"value": value})["message"] == "version 7"


def test_a_traceback_is_in_the_line_of_its_error() -> None:
    line = line_of({"exc_info": (ValueError, ValueError("broken"), None)})

    assert "ValueError: broken" in str(line["exception"])


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_setting_up_twice_logs_once(
    log_format: logs.LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("fleet_worker")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        logs.set_up(log_format, "info", pod="policy-0")
        logs.set_up(log_format, "info", pod="policy-0")
        logging.getLogger("fleet_worker.x").info("hello")
        logging.getLogger("fleet_worker.x").debug("not this")
    finally:
        logger.handlers, logger.level, logger.propagate = before

    (line,) = capsys.readouterr().err.splitlines()
    assert "hello" in line
    assert line.startswith("{") == (log_format == "json") == ("policy-0" in line)
