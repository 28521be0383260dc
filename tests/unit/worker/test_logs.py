"""One JSON object a line. A line can be read, no matter what is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from tests.support.clock import FakeClock

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


class TestRepeatedLines:
    """A line that is written repeatedly does not fill a disk."""

    @staticmethod
    def written(clock: FakeClock, lines: Iterable[tuple[float, str]]) -> list[str]:
        """The texts that pass, of lines that are logged after these seconds each."""
        repeated, passed = logs.RepeatedLines(clock), list[str]()
        for seconds, text in lines:
            clock.advance(seconds)
            record = logging.LogRecord("fleet_worker.x", logging.INFO, "f", 1, "%s", (text,), None)
            if repeated.filter(record):
                passed.append(record.getMessage())
        return passed

    def test_the_same_line_is_written_a_few_times_a_minute(self) -> None:
        passed = self.written(FakeClock(), [(0.005, "stage 2: NoEffect")] * 12_000)

        assert len(passed) == logs.REPEATED_AT_MOST

    def test_the_next_one_after_a_minute_tells_how_many_were_not_written(self) -> None:
        lines = [(0.01, "it fails")] * 100 + [(logs.REPEATED_SECONDS, "it fails")]
        *first, last = self.written(FakeClock(), lines)

        assert first == ["it fails"] * logs.REPEATED_AT_MOST
        assert str(100 - logs.REPEATED_AT_MOST) in last

    def test_other_lines_between_them_are_written(self) -> None:
        lines = [(0.01, text) for n in range(50) for text in ("it fails", f"line {n}")]
        passed = self.written(FakeClock(), lines)

        assert len(passed) == 50 + logs.REPEATED_AT_MOST

    def test_a_line_once_a_minute_is_always_written(self) -> None:
        passed = self.written(FakeClock(), [(logs.REPEATED_SECONDS, "alive")] * 20)

        assert passed == ["alive"] * 20

    def test_every_handler_has_it(self) -> None:
        filters = logs.handler("json").filters

        assert [type(f) for f in filters] == [logs.RepeatedLines]

    def test_only_the_last_lines_are_remembered(self) -> None:
        repeated = logs.RepeatedLines(FakeClock())
        for n in range(5000):
            record = logging.LogRecord("x", logging.INFO, "f", 1, "line %s", (n,), None)
            assert repeated.filter(record)
        assert len(repeated._seen) <= 1000


def test_no_text_begins_another_line_or_is_made_for_a_terminal() -> None:
    written = logs.handler("text").formatter
    assert written is not None
    text = "a\n2026-11-28 ERROR forged\x1b[31m\u202e"
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", (text,), None)
    (line,) = written.format(record).split("\n")

    assert line.endswith("x: a 2026-11-28 ERROR forged\\x1b[31m\\u202e")
