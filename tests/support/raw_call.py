"""A request as the server hands it to an application: message by message, nothing put right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_worker.http.asgi import App

RIGHT = (b"authorization", b"Bearer right")


@dataclass
class RawCall:
    """One request, and what came back.

    Fields:
        pieces: of the body; None is a client that disconnects.
        sent: messages of the reply.
        read: pieces that were taken.
        breaks_after: messages of the reply after which the client is gone.
    """

    method: str
    path: str
    pieces: Sequence[bytes | None] = (b"",)
    headers: Sequence[tuple[bytes, bytes]] = (RIGHT,)
    sent: list[Any] = field(default_factory=list)
    read: int = 0
    breaks_after: int = 10**9

    async def receive(self) -> Any:
        number, self.read = self.read, self.read + 1
        piece = self.pieces[number]
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": self.read < len(self.pieces)}

    async def send(self, message: Any) -> None:
        if len(self.sent) >= self.breaks_after:
            raise OSError("the client is gone")
        self.sent.append(message)

    async def to(self, app: App) -> RawCall:
        """Send it; returns itself, with what came back."""
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "method": self.method,
            "path": path,
            "query_string": query.encode(),
            "headers": list(self.headers),
        }
        await app(scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    def header(self, name: bytes) -> bytes | None:
        return dict(self.sent[0]["headers"]).get(name)
