"""Server-sent events of the RL API, from the bytes of a stream: pure.

Source: HTML Living Standard, "Server-sent events"; docs/reference/rl-api.md, "Events".
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rlfleet.errors import Unavailable
from rlfleet.ports import Change, GoneError
from rlfleet.rl_answers import weights_of

MEDIA_TYPE = "text/event-stream"
_MAX_BYTES = 4 * 1024 * 1024
"""Largest size of one event."""


class NoStreamError(Exception):
    """The answer is not a stream of events. `status`: its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Events:
    """The changes in one stream. Only a newline ends a line there, as the RL API writes them."""

    def __init__(self, namespace: str, fleet: str) -> None:
        self._namespace = namespace
        self._fleet = fleet
        self._rest = b""
        self._name, self._data = "", b""

    def of(self, chunk: bytes) -> Iterator[Change]:
        """The changes that the chunk completes.

        Errors:
            GoneError: the WeightVersion was deleted.
            Unavailable: the stream is malformed, for example by a proxy.
            RlfleetError: the document is of another release.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield from self._of_line(line.removesuffix(b"\r"))
        if len(self._rest) + len(self._data) > _MAX_BYTES:
            raise Unavailable("an event of the RL API has no end")

    def _of_line(self, line: bytes) -> Iterator[Change]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"data":
            self._data += value + b"\n"
        elif not line:
            name, data = self._name, self._data
            self._name, self._data = "", b""
            if name == "deleted":
                raise GoneError("the WeightVersion was deleted")
            if name == "weights" and data:
                yield self._change(data)

    def _change(self, data: bytes) -> Change:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Unavailable("an event of the RL API is not a JSON object")
        return Change("MODIFIED", weights_of(document, self._namespace, self._fleet))
