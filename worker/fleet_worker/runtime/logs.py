"""Log lines for people (text) and for a cluster (one JSON object a line).

INFO is what somebody who runs the worker cares about; DEBUG is for developers. Tokens, prompts
and secrets are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["json", "text"]


def fields(event: str, **values: Any) -> dict[str, Any]:
    """Machine-readable companions of a log line: `_LOG.info("…", extra=fields("loaded", …))`."""
    return {"fields": {"event": event, **{k: v for k, v in values.items() if v is not None}}}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the line's fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line that reads well on a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s rlfleet: %(message)s", "%H:%M:%S")


def set_up(log_format: LogFormat, level: str) -> None:
    """Send our own log lines to standard error; vLLM configures its own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger("fleet_worker")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
