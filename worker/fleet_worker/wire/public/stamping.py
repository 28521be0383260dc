"""Putting the collected versions into a reply as it goes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fleet_worker.core.spans import (
    first_and_last,
    may_end_a_choice,
    split_events,
    stamped_body,
    stamped_event,
)
from fleet_worker.protocol import HEADER_VERSION_END, HEADER_VERSION_START
from fleet_worker.wire.asgi import Message, Send, header_of
from fleet_worker.wire.public.tracking import Tokens

_LOG = logging.getLogger(__name__)


class Stamping:
    """An ASGI `send` that stamps what passes.

    A whole reply is held back until it is complete (it is one message anyway); of a stream the
    headers wait for the first event, because only then it is known which weights made its first
    token: a request may be held over a swap before it begins.
    """

    def __init__(
        self,
        send: Send,
        tokens: Tokens,
        *,
        order: Mapping[str, int],
        has_spans: bool,
        on_unlabelled: Callable[[], None],
    ) -> None:
        """Make one for one reply.

        Args:
            send: Where messages go.
            tokens: What is collected of the request's tokens.
            order: Version → number of its load.
            has_spans: The route writes the spans into its choices by itself.
            on_unlabelled: Called when a reply has tokens of unknown weights.
        """
        self._send = send
        self._tokens = tokens
        self._order = order
        self._has_spans = has_spans
        self._on_unlabelled = on_unlabelled
        self._start: Message | None = None
        self._streamed = False
        self._rest = b""

    async def __call__(self, message: Message) -> None:
        """Take one message of the reply."""
        if message["type"] == "http.response.start":
            self._start = message
            kind = header_of(message["headers"], b"content-type") or ""
            self._streamed = kind.startswith("text/event-stream")
        elif self._streamed:
            await self._pass_events(message)
        else:
            await self._pass_whole(message)

    async def _pass_whole(self, message: Message) -> None:
        self._rest += message.get("body", b"")
        if message.get("more_body", False) or self._start is None:
            return
        body, headers = self._rest, list(self._start["headers"])
        if self._tokens.spans and self._start["status"] == 200:
            self._look_for_unlabelled()
            if not self._has_spans:
                body = stamped_body(body, self._tokens.spans)
            versions = first_and_last(self._tokens.spans, self._order)
            if versions is not None:
                headers.append((HEADER_VERSION_START.encode(), versions[0].encode()))
                headers.append((HEADER_VERSION_END.encode(), versions[1].encode()))
        headers = [(k, v) for k, v in headers if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _pass_events(self, message: Message) -> None:
        if self._start is not None:
            await self._send_start()
        body, more = message.get("body", b""), message.get("more_body", False)
        whole = not self._rest and body.endswith(b"\n\n")
        if self._has_spans or (whole and not may_end_a_choice(body)):
            await self._send(message)
        else:
            await self._send_stamped(message, self._rest + body, more=more)
        if not more:
            self._look_for_unlabelled()
            self._check_first_version()

    async def _send_start(self) -> None:
        start, self._start = self._start or {}, None
        headers = list(start["headers"])
        if self._tokens.first_version is not None:
            version = self._tokens.first_version.encode()
            headers.append((HEADER_VERSION_START.encode(), version))
        await self._send({**start, "headers": headers})

    async def _send_stamped(self, message: Message, buffer: bytes, *, more: bool) -> None:
        events, self._rest = split_events(buffer)
        body = b"".join(stamped_event(event, self._tokens.spans) for event in events)
        if not more:
            body, self._rest = body + self._rest, b""
        if body or not more:
            await self._send({**message, "body": body})

    def _look_for_unlabelled(self) -> None:
        if any(spans is None for spans in self._tokens.spans.values()):
            self._on_unlabelled()
            _LOG.error("a reply has tokens that the engine did not label")

    def _check_first_version(self) -> None:
        """The header of a stream was sent on what was known then; the spans know better."""
        versions = first_and_last(self._tokens.spans, self._order)
        if versions is not None and versions[0] != self._tokens.first_version:
            self._on_unlabelled()
            _LOG.error(
                "a stream was announced as %s and began with %s",
                self._tokens.first_version,
                versions[0],
            )
