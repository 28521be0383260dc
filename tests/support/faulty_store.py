"""A proxy in front of a real object store, which spoils its answers as a test says."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """An answer of the store.

    Fields:
        sent: how many bytes of the body are sent before the connection is cut; None for all.
        times: how often the body is sent, as one answer.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int | None = None
    times: int = 1

    def with_body(self, body: bytes) -> Answer:
        return replace(self, body=body)


@dataclass(frozen=True)
class Asked:
    """A request to the store."""

    path: str
    headers: dict[str, str]
    method: str = "GET"

    @property
    def is_listing(self) -> bool:
        return "list-type=" in self.path

    @property
    def by_the_json_api(self) -> Asked:
        """A write to Google Cloud Storage by the other API, the only one of whose conditions its fake server keeps."""
        if self.method != "PUT":
            return self
        bucket, name = self.path.lstrip("/").split("/", 1)
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            path += f"&ifGenerationMatch={generation}"
        return replace(self, path=path, method="POST")


def honest(_asked: Asked, answer: Answer) -> Answer:
    """The store's own answer."""
    return answer


def as_by_the_xml_api(asked: Asked, answer: Answer) -> Answer:
    """The answer to `Asked.by_the_json_api`."""
    if asked.method != "PUT" or answer.status != 200:
        return answer
    written = json.loads(answer.body)
    found = {"etag": f'"{written["etag"]}"', "x-goog-generation": written["generation"]}
    return replace(answer, headers=answer.headers | found)


def lower(headers: Message) -> dict[str, str]:
    """Headers with names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


@dataclass
class FaultyStore:
    """The proxy.

    Fields:
        way: makes the request that the store gets.
        fault: makes what is sent of an answer of the store.
        asked: all requests.
    """

    endpoint: str = ""
    way: Callable[[Asked], Asked] = lambda asked: asked
    fault: Callable[[Asked, Answer], Answer] = honest
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def faulty_store(
    behind: str, certificate: tuple[Path, Path] | None = None
) -> Iterator[FaultyStore]:
    """A proxy in front of the store at a URL. It passes the host on, which clients sign.

    `certificate`: with its key, for TLS.
    """
    proxy = FaultyStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = Asked(self.path, lower(self.headers), self.command)
            proxy.asked.append(asked)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection(urlsplit(behind).netloc)
            unchanged = {"skip_host": True, "skip_accept_encoding": True}
            sent = proxy.way(asked)
            connection.putrequest(sent.method, sent.path, **unchanged)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            found = connection.getresponse()
            answer = proxy.fault(asked, Answer(found.status, lower(found.headers), found.read()))
            connection.close()
            with suppress(OSError):  # the client did not wait
                self._send(answer)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the library's names

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name not in {"content-length", "date", "server", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body) * answer.times))
            self.end_headers()
            for _ in range(answer.times):
                self.wfile.write(answer.body[: answer.sent])
            self.close_connection = self.close_connection or answer.sent is not None

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        scheme, context = "https", ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        # The threads of the connections shake hands.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    proxy.endpoint = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
