"""Checks a reply, changes it, and writes its weight versions into the headers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.http.asgi import (
    Message,
    Send,
    WireError,
    answer_error,
    broken_reply,
    ended_without_tokens,
    header_of,
)
from fleet_worker.protocol import (
    HEADER_DIGEST_END,
    HEADER_DIGEST_START,
    HEADER_RUN_END,
    HEADER_RUN_START,
    HEADER_VERSION_END,
    HEADER_VERSION_START,
)
from fleet_worker.provenance.changing import Changes, Reply
from fleet_worker.provenance.demanding import check_spans, check_version
from fleet_worker.provenance.demands import Demand
from fleet_worker.provenance.spans import Dialect, event_of, first_and_last, first_names
from fleet_worker.provenance.tracking import Tokens

_LOG = logging.getLogger(__name__)

_START = (HEADER_VERSION_START, HEADER_RUN_START, HEADER_DIGEST_START)
_END = (HEADER_VERSION_END, HEADER_RUN_END, HEADER_DIGEST_END)


class CutShortError(OSError):
    """The reply was ended from our side. An OSError, as if the client had gone: vLLM then stops."""


class Stamping:
    """Changes what passes through the `send` of a reply (ASGI).

    A whole reply waits until it is complete (it is one message anyway), so that an error can still
    replace it. The headers of a stream wait for the first event, which shows the weights of the first
    token: a swap may come between the request and its first token. A later failure ends the stream
    with an error event.

    Between the first event and the end of a choice a stream passes untouched, until the tokens have
    news.
    """

    __slots__ = (
        *("_changes", "_demand", "_demands", "_dialect", "_is_aborted", "_on_unlabelled", "_order"),
        *("_passes", "_patch", "_pieces", "_send", "_start", "_streamed", "_tokens"),
    )

    def __init__(
        self,
        send: Send,
        tokens: Tokens,
        reply: Reply,
        *,
        demand: Demand,
        order: Mapping[WeightName, int],
        on_unlabelled: Callable[[], None],
        is_aborted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Create the `send` of one reply.

        Args:
            send: Where messages go.
            tokens: The tokens of the request.
            reply: The changes of the dialect.
            demand: The weights that must have made the tokens.
            order: Name of weights → number of their load.
            on_unlabelled: Called when a reply has tokens of unknown weights.
            is_aborted: Whether the client itself has ended a request, by its id in the engine.
        """
        self._send = send
        self._tokens = tokens
        self._dialect = reply.dialect
        self._changes = Changes(reply, tokens)
        self._patch = reply.patch
        self._demand = demand
        self._demands = not demand.is_any
        self._order = order
        self._on_unlabelled = on_unlabelled
        self._is_aborted = is_aborted
        self._start: Message | None = None
        self._streamed = False
        self._passes = False
        self._pieces: list[bytes] = []

    def send(self, message: Message) -> Awaitable[None]:
        """Take one message of the reply. A coroutine of ours for each token would cost too much, and so would `__call__`."""
        if self._passes and not self._tokens.has_news and message.get("more_body", False):
            if self._patch is None:
                return self._send(message)
            body = message["body"]
            if body.endswith(b"\n\n"):
                try:
                    patched = self._patch(body)
                except Exception:  # noqa: BLE001 - it fails there, too, which ends the stream
                    return self._pass_events(message)
                return self._send({**message, "body": patched})
        if message["type"] == "http.response.start":
            return self._begin(message)
        return self._pass_events(message) if self._streamed else self._pass_whole(message)

    async def _begin(self, message: Message) -> None:
        self._start = message
        kind = header_of(message["headers"], b"content-type") or ""
        self._streamed = kind.startswith("text/event-stream")

    # --- whole replies -------------------------------------------------------------------------

    async def _pass_whole(self, message: Message) -> None:
        self._pieces.append(message.get("body", b""))
        if message.get("more_body", False) or self._start is None:
            return
        body, headers = b"".join(self._pieces), list(self._start["headers"])
        if self._start["status"] == 200:
            try:
                self._check_tokens()
                check_spans(self._demand, self._tokens.spans)
                body = self._changes.whole(body)
            except WireError as error:
                await answer_error(self._send, error)
                return
            except Exception:  # noqa: BLE001 - whatever it is, half a reply must not go out
                _LOG.exception("a reply could not be made")
                await answer_error(self._send, broken_reply("the reply could not be made"))
                return
            self._look_for_unlabelled()
            headers += self._version_headers()
        elif self._start["status"] == 400:
            body = self._changes.refusal(body)
        headers = [(k, v) for k, v in headers if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _version_headers(self) -> list[tuple[bytes, bytes]]:
        ends = first_and_last(self._tokens.spans, self._order)
        if ends is None:
            return []
        return [*_headers_of(ends[0], _START), *_headers_of(ends[1], _END)]

    # --- streams -------------------------------------------------------------------------------

    async def _pass_events(self, message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        try:
            if self._tokens.has_news:
                self._tokens.has_news = False
                self._check_news()
            body = self._changes.events(body, last=not more)
        except WireError as error:
            await self._cut_short(error)
        except Exception:  # noqa: BLE001 - as above
            _LOG.exception("a stream could not be made")
            await self._cut_short(broken_reply("the reply could not be made"))
        if self._start is not None:
            if more and self._is_early:
                self._pieces.append(body)
                return
            await self._send_start()
            body, self._pieces = b"".join([*self._pieces, body]), []
        if body or not more:
            await self._send(message if body is message.get("body") else {**message, "body": body})
        self._passes = self._start is None and self._changes.are_made
        if not more:
            self._look_for_unlabelled()
            self._check_first_version()

    def _check_news(self) -> None:
        self._check_tokens()
        if self._demands and (name := self._tokens.policy) is not None:
            check_version(self._demand, name)
        # vLLM merges outputs that a slow client has not read. The weights in the engine now may
        # not have made them all.
        check_spans(self._demand, self._tokens.spans)

    async def _send_start(self) -> None:
        start, self._start = self._start or {}, None
        headers = list(start["headers"])
        if self._tokens.first is not None:
            headers += _headers_of(self._tokens.first, _START)
        await self._send({**start, "headers": headers})

    async def _cut_short(self, error: WireError) -> None:
        if self._start is not None:
            await answer_error(self._send, error)
        else:
            end = event_of(b"", error.as_json()) + b"data: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": end, "more_body": False})
        raise CutShortError(error.message)

    # --- what must be true ---------------------------------------------------------------------

    @property
    def _is_early(self) -> bool:
        """Events of `/v1/responses` that come before the first token, and wait for it."""
        return self._dialect is Dialect.RESPONSE and self._tokens.first is None

    def _check_tokens(self) -> None:
        tokens = self._tokens
        if tokens.is_without_tokens and not any(map(self._is_aborted, tokens.request_ids)):
            raise ended_without_tokens()
        if tokens.is_uneven:
            raise broken_reply("the engine's tokens, log-probabilities and labels do not fit")

    def _look_for_unlabelled(self) -> None:
        if any(spans is None for spans in self._tokens.spans.values()):
            self._on_unlabelled()
            _LOG.error("a reply has tokens that the engine did not label")

    def _check_first_version(self) -> None:
        """The header of a stream was sent on what was known then; the spans know better."""
        first = first_names(self._tokens.spans)
        if first and self._tokens.first not in first:
            self._on_unlabelled()
            _LOG.error(
                "a stream was announced as %s and began with %s",
                self._tokens.first,
                " and ".join(map(str, first)),
            )


def _headers_of(name: WeightName, names: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers for some weights, under the names of a reply's start or end."""
    values = (name.version, name.run_id, name.digest)
    both = zip(names, values, strict=True)
    return [(header.encode(), value.encode()) for header, value in both if value is not None]
