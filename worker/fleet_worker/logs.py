"""Log lines as text for a terminal, or as one JSON object a line for a cluster.

The operator uses it too, so that all lines have one schema (docs/reference/logs.md). INFO is for operations
and DEBUG for development. Tokens, prompts and secrets are never logged.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from rlfleet_resources.base import printable

LogFormat = Literal["json", "text"]

REPEATED_AT_MOST = 5
"""The same line is written this often within `REPEATED_SECONDS`."""
REPEATED_SECONDS = 60.0
_REMEMBERED_LINES = 1000

_NAMES = {"levelname": "level", "name": "logger", "exc_info": "exception"}
_OF_KOPF = ("k8s_ref", "k8s_skip", "settings")
"""Attributes of a record of kopf. `fleet_operator.runtime.logs` takes the object's name from it."""


def fields(event: str, **values: Any) -> dict[str, Any]:
    """The machine-readable fields of a log line: `_LOG.info("…", extra=fields("loaded", …))`."""
    return {"event": event, **{k: v for k, v in values.items() if v is not None}}


def json_formatter(**always: str) -> logging.Formatter:
    """Formats a record as JSON: the fields of every line, those of `fields`, and `always`."""
    return JsonFormatter(
        ["levelname", "name", "message"],
        rename_fields=_NAMES,
        static_fields=always,
        reserved_attrs=[*RESERVED_ATTRS, *_OF_KOPF],
        timestamp=True,
    )


class _Text(logging.Formatter):
    """Formats a record as a line, and a traceback below it. No message can begin another line, or colour it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        """See `logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return "\n".join(map(printable, super().format(record).split("\n")))


class RepeatedLines(logging.Filter):
    """Drops a line that was written often lately. The next one that is written tells how many were dropped.

    Without that, what fails repeatedly, or a peer that misbehaves, fills the disk of the node.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any line. `clock`: monotonic seconds."""
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()
        """Logger, level and text of a line → when it was counted first, and how often since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line."""
        now, text = self._clock(), record.getMessage()
        line = (record.name, record.levelno, text)
        since, count = self._seen.pop(line, (now, 0))
        if now - since >= REPEATED_SECONDS:
            if (dropped := count - REPEATED_AT_MOST) > 0:
                record.msg, record.args = f"{text} ({dropped} more such lines before it)", ()
            since, count = now, 0
        self._seen[line] = since, count + 1
        if len(self._seen) > _REMEMBERED_LINES:
            self._seen.popitem(last=False)
        return count < REPEATED_AT_MOST


def handler(log_format: LogFormat, **always: str) -> logging.Handler:
    """Writes lines to standard error, repeated ones not too often. In JSON each has the fields `always`."""
    made = logging.StreamHandler(sys.stderr)
    made.addFilter(RepeatedLines())
    text = _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    made.setFormatter(json_formatter(**always) if log_format == "json" else text)
    return made


def set_up(log_format: LogFormat, level: str, *, pod: str | None = None) -> None:
    """Write the worker's log lines, with the name of its pod. vLLM configures its own logging."""
    logger = logging.getLogger("fleet_worker")
    logger.handlers = [handler(log_format, **({"pod": pod} if pod else {}))]
    logger.setLevel(level.upper())
    logger.propagate = False
