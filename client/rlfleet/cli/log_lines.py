"""Log lines of the operator and of workers: pure, read off the text of the kubelet."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from rlfleet_resources.base import Resource

_VERSION_FIELDS = ("version", "desired", "applied")
_LEVELS = {"warn": "WARNING", "critical": "ERROR", "fatal": "ERROR"}
_TEXT = re.compile(r"(?:\d\S* )*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[ :]*(.*)", re.DOTALL)
"""A line of Python's logging as text: a time, the level, the message."""
_NOT_FIELDS = frozenset(
    {"time", "timestamp", "level", "message"}  # those of rlfleet (docs/reference/logs.md)
    | {"asctime", "levelname", "name", "process", "processName"}  # and of vLLM
)
_NOT_SHOWN = frozenset({"logger", "event", "namespace", "fleet", "pod"})
_FLEET = re.compile(r"\bfleet \S+/\S+")
_DEFECTS = frozenset({"WARNING", "ERROR"})
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class LogLine(Resource):
    """One line of a container's log.

    Fields:
        time: at which the kubelet got it.
        level: empty where the line names none.
        fields: all others of a JSON line.
    """

    time: datetime
    pod: str
    level: str
    message: str
    fields: dict[str, Any] = Field(default_factory=dict)

    @property
    def words(self) -> str:
        """The message and its fields, in one line of text."""
        named = (f"{k}={v}" for k, v in self.fields.items() if k not in _NOT_SHOWN)
        return " ".join([self.message, *named])


def log_line(raw: str, pod: str) -> LogLine:
    """A line with the kubelet's timestamp. Source: `timestamps=true` of Kubernetes pods/log."""
    stamp, _, text = raw.partition(" ")
    try:
        time = datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        time, text = _BEGINNING, raw
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "message" not in found:
        matched = _TEXT.match(text)
        level, message = (matched[1], matched[2]) if matched else ("", text)
        return LogLine(time=time, pod=pod, level=_level(level), message=message)
    rest = {k: v for k, v in found.items() if k not in _NOT_FIELDS}
    level, message = str(found.get("level") or found.get("levelname", "")), str(found["message"])
    return LogLine(time=time, pod=pod, level=_level(level), message=message, fields=rest)


def concerns(line: LogLine, namespace: str, fleet: str) -> bool:
    """Whether a line of an operator is about a fleet, or a warning that names no fleet."""
    if line.fields.get("namespace", namespace) != namespace:
        return False
    if "fleet" in line.fields:
        return bool(line.fields["fleet"] == fleet)
    words, name = " ".join(map(str, [line.message, *line.fields.values()])), re.escape(fleet)
    if re.search(rf"(?<![\w.-]){re.escape(namespace)}/{name}(?![\w.-])", words):
        return True
    if re.search(rf"(?<![\w./-]){name}-\d+(?![\w-])", words):
        return True
    return line.level in _DEFECTS and not _FLEET.search(words)


def is_about(line: LogLine, version: str) -> bool:
    """Whether a line names a version of the weights."""
    values = (str(line.fields.get(name, "")) for name in _VERSION_FIELDS)
    if any(value == version or value.startswith(f"{version} ") for value in values):
        return True
    # A bare number is also a count.
    before = r"\bversion " if version.isdecimal() else r"(?<![\w.-])"
    return re.search(rf"{before}{re.escape(version)}(?![\w-]|\.\w)", line.message) is not None


def _level(given: str) -> str:
    return _LEVELS.get(given.lower(), given.upper())
