"""The operator's log lines have the worker's schema, and those of kopf too."""

from __future__ import annotations

import json
import logging

import kopf
import pytest
from kopf._core.actions.loggers import LocalObjectLogger

from fleet_operator.runtime import logs


@pytest.fixture(autouse=True)
def root():
    """The root logger, put back as it was."""
    names = (None, "kopf", "aiohttp.access")
    before = [(one := logging.getLogger(name), one.level, one.handlers[:]) for name in names]
    yield
    for logger, level, handlers in before:
        logger.level, logger.handlers = level, handlers


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_about_a_fleet_has_its_name_and_namespace(capsys):
    logs.set_up(log_format="json", log_level="INFO")
    extra = logs.fleet_fields("reconciled", ("rl", "policy"), applied="42")
    logging.getLogger("fleet").info("fleet %s/%s: %s", "rl", "policy", "rests", extra=extra)

    (line,) = lines(capsys)
    assert line["message"] == "fleet rl/policy: rests"
    assert (line["namespace"], line["fleet"], line["applied"]) == ("rl", "policy", "42")


@pytest.mark.parametrize(
    ("kind", "field"), [("InferenceFleet", "fleet"), ("WeightVersion", "weightversion")]
)
def test_a_line_of_kopf_has_the_same_shape_and_names_its_object(kind, field, capsys):
    logs.set_up(log_format="json", log_level="INFO")
    metadata = {"name": "policy", "namespace": "rl", "uid": "u"}
    body = kopf.Body({"apiVersion": "v1", "kind": kind, "metadata": metadata})
    LocalObjectLogger(body=body, settings=kopf.OperatorSettings()).warning("a handler failed")

    (line,) = lines(capsys)
    assert line.pop("timestamp")
    assert line == {
        "level": "WARNING",
        "logger": "kopf.objects",
        "message": "a handler failed",
        "event": "watch",
        "namespace": "rl",
        field: "policy",
    }


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_root_logger_is_set_up_and_chatty_libraries_are_quiet(log_format, capsys):
    logs.set_up(log_format=log_format, log_level="DEBUG")
    logging.getLogger("fleet").debug("hello")
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).info("chatter")
    written = capsys.readouterr().err

    assert "hello" in written
    assert "chatter" not in written
    assert written.startswith("{") == (log_format == "json")
