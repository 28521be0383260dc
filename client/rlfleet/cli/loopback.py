"""A page on 127.0.0.1 for one browser, live by server-sent events.

Other programs of this machine, and pages of other sites, reach the port, too: without the token of the
address, or with the name of another host, they get nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Condition, Thread
from typing import Any

_MOST_STREAMS = 8
_REQUEST_SECONDS = 10.0
_SILENCE_SECONDS = 10.0
"""After which a stream sends a comment, so that the end of a browser is noticed."""
SCRIPT = """
const shown = document.querySelector("main"), state = document.querySelector("#state");
const source = new EventSource("events");
source.onmessage = (event) => {
  state.hidden = true;
  if (!getSelection().isCollapsed) return;  // not what is being copied
  const wide = () => [...shown.querySelectorAll(".wide")], left = wide().map((one) => one.scrollLeft);
  shown.innerHTML = JSON.parse(event.data);
  wide().forEach((one, place) => { one.scrollLeft = left[place] ?? 0; });
};
source.onerror = () => { state.hidden = false; };
"""
"""Of the page. It must have `main`, whose content events replace, and `#state` for a lost connection."""


class Latest:
    """The newest content, and those that wait for a newer one."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._number = 0
        self._text = ""

    def put(self, text: str) -> None:
        """Replace the content, if it is another one."""
        with self._changed:
            if text != self._text:
                self._text = text
                self._number += 1
                self._changed.notify_all()

    def after(self, number: int, seconds: float) -> tuple[int, str]:
        """The number and the content after the one with a number; the same number if it is still the newest."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number, seconds)
            return self._number, self._text


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Browsers open connections that they do not use, and leave pages that they have half of."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Loopback:
    """Serves one page until `close`.

    Args:
        port: 0 for a free one.
        latest: The content of `main`.
        page: Makes the whole page of that content and the nonce of its script.

    Errors: OSError if the port is taken.
    """

    def __init__(self, port: int, latest: Latest, page: Callable[[str, str], str]) -> None:
        self._token = secrets.token_urlsafe(32)
        token, streams = self._token, BoundedSemaphore(_MOST_STREAMS)

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS
            server_version, sys_version = "rlfleet", ""

            def do_GET(self) -> None:
                _answer(self, token, latest, page, streams)

            def log_message(self, *_: object) -> None:
                """Nothing: the path has the token."""

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


def _answer(
    request: BaseHTTPRequestHandler,
    token: str,
    latest: Latest,
    page: Callable[[str, str], str],
    streams: BoundedSemaphore,
) -> None:
    port = request.connection.getsockname()[1]
    end = "" if port == HTTP_PORT else f":{port}"
    if request.headers.get("Host") not in {f"127.0.0.1{end}", f"localhost{end}"}:
        request.send_error(HTTPStatus.FORBIDDEN)
        return
    given, _, name = request.path.removeprefix("/").partition("/")
    is_known = hmac.compare_digest(given.encode(), token.encode())
    if not is_known or name not in {"", "events"}:
        request.send_error(HTTPStatus.NOT_FOUND)
        return
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    common = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    if name == "":
        body = page(latest.after(0, _REQUEST_SECONDS)[1], nonce).encode()
        _begin(
            request,
            common | {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))},
        )
        request.wfile.write(body)
    elif not streams.acquire(blocking=False):
        request.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
    else:
        try:
            _begin(request, common | {"Content-Type": "text/event-stream"})
            _stream(request, latest)  # until the browser has gone
        finally:
            streams.release()


def _begin(request: BaseHTTPRequestHandler, headers: dict[str, str]) -> None:
    request.send_response(HTTPStatus.OK)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


def _stream(request: BaseHTTPRequestHandler, latest: Latest) -> None:
    """Send each content once, until writing fails. Source: HTML, "Server-sent events"."""
    number = 0
    while True:
        newest, text = latest.after(number, _SILENCE_SECONDS)
        event = f"data: {json.dumps(text)}\n\n" if newest > number else ": nothing new\n\n"
        request.wfile.write(event.encode())
        request.wfile.flush()
        number = newest
