"""A trainer as workers meet it: plain calls to the admin port, from an address of its own."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx
from tests.support.worker import TOKEN, WorkerProcess


class Trainer:
    """Calls one worker. By the path's token, as trainers do that send no headers, if asked."""

    def __init__(
        self, worker: WorkerProcess, *, address: str = "127.0.0.1", in_path: bool = False
    ) -> None:
        self._prefix = f"/t/{TOKEN}" if in_path else ""
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{worker.admin_port}",
            headers={} if in_path else {"Authorization": f"Bearer {TOKEN}"},
            transport=httpx.HTTPTransport(local_address=address),
            timeout=60,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """One call; without keywords it has no body."""
        return self.client.post(self._prefix + path, **({"json": body} if body else {}))

    def get(self, path: str) -> httpx.Response:
        """A GET."""
        return self.client.get(self._prefix + path)

    def must(self, path: str, **body: Any) -> dict[str, Any]:
        """A call that has to succeed."""
        reply = self.post(path, **body)
        assert reply.status_code == 200, f"{path}: {reply.text}"
        assert int(reply.headers["content-length"]) == len(reply.content)
        return dict(reply.json())

    def must_get(self, path: str) -> dict[str, Any]:
        """A GET that has to succeed."""
        reply = self.get(path)
        assert reply.status_code == 200, f"{path}: {reply.text}"
        return dict(reply.json())
