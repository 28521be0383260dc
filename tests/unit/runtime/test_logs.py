"""One JSON object a line; whatever is logged, the line can be read."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from fleet_operator.runtime import logs
from fleet_operator.runtime.logs import JsonFormatter


@pytest.fixture
def root():
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before = (logger.level, logger.handlers[:])
    yield logger
    logger.level, logger.handlers = before


def rendered(message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "fleet", "levelno": 20, "levelname": "INFO", "msg": message, "args": args} | extra
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_line_has_time_level_logger_and_message():
    line = rendered("fleet %s/%s: %s", "rl", "policy", "3 workers serve 1")

    assert line["level"] == "INFO"
    assert line["logger"] == "fleet"
    assert line["message"] == "fleet rl/policy: 3 workers serve 1"
    assert str(line["time"]).endswith("+00:00")


def test_values_come_as_fields():
    assert rendered("x", desired="42", calls=3)["desired"] == "42"
    assert rendered("x", desired="42", calls=3)["calls"] == 3


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="an object"),
        pytest.param("two\nlines", id="two lines"),
        pytest.param("\udc80", id="half a character"),
        pytest.param({"a": {1, 2}}, id="a set"),
    ],
)
def test_whatever_is_given_can_be_written(value):
    assert rendered("x", value=value)["message"] == "x"


def test_an_exception_is_told_in_its_line():
    try:
        int("boom")
    except ValueError:
        line = rendered("x", exc_info=sys.exc_info())

    assert "ValueError: invalid literal" in str(line["exception"])


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_root_logger_is_set_up_and_chatty_libraries_are_quiet(root, log_format, capsys):
    logs.set_up(log_format=log_format, log_level="DEBUG")
    logging.getLogger("fleet").debug("hello")
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).info("chatter")
    told = capsys.readouterr().err

    assert "hello" in told
    assert "chatter" not in told
    assert told.startswith("{") == (log_format == "json")
