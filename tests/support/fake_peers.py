"""A fake peer: it serves the files of a directory as a worker does, and may lie, stop, or send without an end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from fleet_worker.protocol import Peer

Listed = list[tuple[str, int]]


class FakePeer(ThreadingHTTPServer):
    """Fields: `listing`, `content`, and what is sent `before` an answer may be replaced; `asked` has the paths of all requests."""

    daemon_threads = True

    def __init__(self, directory: Path, uid: str, *, is_delta: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory = directory
        self.is_delta = is_delta
        self.names = sorted(file.name for file in directory.iterdir())
        self.listing: Callable[[Listed], object] = lambda listed: listed
        self.content: Callable[[str, bytes], bytes] = lambda _name, content: content
        self.before: Callable[[BinaryIO], object] = lambda _out: None
        self.asked: list[str] = []
        self.peer = Peer(host="127.0.0.1", port=self.server_port, pod_uid=uid)

    def answer(self, path: str) -> tuple[int, bytes]:
        """Length that is promised, and the bytes that are sent."""
        self.asked.append(path)
        *_, last = path.split("/")
        if not last.isdigit():
            listed = [(name, len((self.directory / name).read_bytes())) for name in self.names]
            text = json.dumps(self.listing(listed)).encode()
            return len(text), text
        name = self.names[int(last)]
        true = (self.directory / name).read_bytes()
        return len(true), self.content(name, true)


class _Handler(BaseHTTPRequestHandler):
    server: FakePeer

    def do_GET(self) -> None:
        if self.server.is_delta is not ("-delta" in self.path):
            self.send_error(404)
            return
        length, content = self.server.answer(self.path)
        with suppress(OSError):
            self.server.before(self.wfile)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        end = int(last) + 1 if last else length
        self.send_response(206)
        self.send_header("Content-Length", str(end - int(first)))
        with suppress(OSError):  # a client that reads no more than it needs
            self.end_headers()
            self.wfile.write(content[int(first) : end if last else None])

    def log_message(self, *_: object) -> None:
        """Be silent."""


@contextmanager
def fake_peer(directory: Path, uid: str = "liar", *, is_delta: bool = False) -> Iterator[FakePeer]:
    """Serve a directory until the end of the block: a version, or its delta and nothing else."""
    with FakePeer(directory, uid, is_delta=is_delta) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
