"""The client next to a proxy: which requests go through it, and whose answers it names."""

from __future__ import annotations

import asyncio
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from tests.support.certificates import issue

from rlfleet import DemandTransport, NotConfigured, RlfleetError, Unavailable
from rlfleet.kube import AsyncKube, BlockingKube
from rlfleet.kubeconfig import Access, load_access
from rlfleet.ports import Kind, run_blocking
from rlfleet.proxies import proxy_of
from rlfleet.rl_access import RlAccess, rl_access
from rlfleet.rl_api import AsyncRlApi, BlockingRlApi

PROXY = "http://proxy:3128"
CLUSTER = "10.0.0.0/8, fd00::/8,.svc,.cluster.local,192.0.2.7,api.example:6443,corp.example"


# --- which requests go through it -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_direct"),
    [
        ("https://10.96.0.1:443", True),
        ("https://11.96.0.1", False),
        ("https://[fd00::1]:6443", True),
        ("https://[fe80::1]", False),
        ("https://192.0.2.7", True),
        ("https://192.0.2.70", False),
        ("http://rlfleet-api.rlfleet-system.svc:8090", True),
        ("http://rlfleet-api.rlfleet-system.svc.cluster.local.:8090", True),
        ("http://svc", False),
        ("https://api.example:6443", True),
        ("https://api.example", False),
        ("https://corp.example", True),
        ("https://RL.Corp.Example", True),
        ("https://notcorp.example", False),
        ("http://localhost:8080", True),
        ("http://127.0.0.9", True),
        ("http://[::1]", True),
    ],
)
def test_networks_addresses_and_domains_are_reached_without_the_proxy(url, *, is_direct):
    named = {"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY, "NO_PROXY": CLUSTER}

    assert proxy_of(url, named) == (None if is_direct else PROXY)
    assert proxy_of(url, {name.lower(): value for name, value in named.items()}) == (
        None if is_direct else PROXY
    )


@pytest.mark.parametrize(
    ("variables", "http", "https"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": PROXY}, PROXY, None),
        ({"HTTPS_PROXY": PROXY}, None, PROXY),
        ({"ALL_PROXY": PROXY}, PROXY, PROXY),
        ({"HTTPS_PROXY": "proxy:3128"}, None, PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None, None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "no/network, 10.0.0.0/99,,:"}, None, PROXY),
    ],
)
def test_each_scheme_has_its_proxy(variables, http, https):
    assert proxy_of("http://server", variables) == http
    assert proxy_of("https://server", variables) == https


def test_both_backends_ask_the_same_place(tmp_path):
    named = {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}
    account = tmp_path / "account"
    account.mkdir()
    for name in ("token", "namespace"):
        (account / name).write_text("rl")
    (account / "ca.crt").write_text("")
    kubeconfig = tmp_path / "config"

    for host, proxy in (("10.96.0.1", None), ("192.0.2.1", PROXY)):
        cluster = {"server": f"https://{host}", "proxy-url": ""}
        kubeconfig.write_text(
            f"{{current-context: c, contexts: [{{name: c, context: {{cluster: c}}}}], "
            f"clusters: [{{name: c, cluster: {{server: '{cluster['server']}'}}}}]}}"
        )
        assert load_access(kubeconfig, environment=named).proxy == proxy
        found = rl_access(f"https://{host}", token="t", namespace="rl", environment=named)
        assert found.proxy == proxy


# --- whose answers it names -----------------------------------------------------------------------


class FakeProxy(BaseHTTPRequestHandler):
    """Answers every request with a status and words of its own."""

    status, kind, words = 503, "text/plain", b"refused"

    def refuse(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.words)))
        self.end_headers()
        self.wfile.write(self.words)

    do_GET = do_PATCH = do_PUT = do_CONNECT = refuse  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def fake_proxy(
    status: int, kind: str = "", words: bytes = b"refused", made: type[FakeProxy] = FakeProxy
) -> Iterator[str]:
    handler = type("Handler", (made,), {"status": status, "kind": kind, "words": words})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://user:password@127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class FakeTunnel(FakeProxy):
    """Takes the place of the server behind the tunnel, too: its certificate is for `api.rl`."""

    server_tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        with self.server_tls.wrap_socket(self.connection, server_side=True) as stream:
            stream.recv(65536)
            body = b'{"kind": "WeightVersion"}'
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.close_connection = True


@pytest.mark.parametrize("is_async", [False, True])
def test_the_name_of_a_server_is_that_of_the_kubeconfig_behind_a_proxy_too(tmp_path, is_async):
    certificate, key = issue(tmp_path, "api.rl")
    FakeTunnel.server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    FakeTunnel.server_tls.load_cert_chain(certificate, key)
    with fake_proxy(200, made=FakeTunnel) as proxy:
        cluster = {
            "server": "https://10.96.0.1", "proxy-url": proxy, "tls-server-name": "api.rl",
            "certificate-authority": str(certificate),
        }  # fmt: skip
        config = {
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
        }  # fmt: skip
        (tmp_path / "config").write_text(json.dumps(config))
        access = load_access(tmp_path / "config", environment={})
        if is_async:
            found = asyncio.run(on_a_loop(AsyncKube(access, "trainer")))
        else:
            found = run_blocking(BlockingKube(access, "trainer").get(Kind.WEIGHTS, "policy"))

    assert found["kind"] == "WeightVersion"


def tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def kube(scheme: str, proxy: str) -> Access:
    return Access(f"{scheme}://10.96.0.1", "rl", tls(), lambda: "t", proxy=proxy)


def rl(scheme: str, proxy: str) -> RlAccess:
    return RlAccess(f"{scheme}://10.96.0.1", "rl", tls(), lambda: "t", proxy)


def by_kubeconfig(scheme: str, proxy: str) -> Any:
    place = BlockingKube(kube(scheme, proxy), "trainer")
    try:
        return run_blocking(place.get(Kind.WEIGHTS, "policy"))
    finally:
        run_blocking(place.close())


def by_url(scheme: str, proxy: str) -> Any:
    place = BlockingRlApi(rl(scheme, proxy), "policy")
    try:
        return run_blocking(place.get(Kind.WEIGHTS, "policy"))
    finally:
        run_blocking(place.close())


async def on_a_loop(place: Any) -> Any:
    try:
        return await place.get(Kind.WEIGHTS, "policy")
    finally:
        await place.close()


USES = [
    by_kubeconfig,
    by_url,
    lambda scheme, proxy: asyncio.run(on_a_loop(AsyncKube(kube(scheme, proxy), "trainer"))),
    lambda scheme, proxy: asyncio.run(on_a_loop(AsyncRlApi(rl(scheme, proxy), "policy"))),
]


@pytest.mark.parametrize("use", USES, ids=["kube", "rl", "kube asyncio", "rl asyncio"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("status", "kind"), [(503, Unavailable), (403, NotConfigured)])
def test_the_answer_of_a_proxy_is_named_as_its_own(use, scheme, status, kind):
    with fake_proxy(status) as proxy, pytest.raises(kind) as refused:
        use(scheme, proxy)

    message = str(refused.value)
    assert f"the proxy {proxy.replace('user:password@', '')}" in message
    for named in (str(status), f"{scheme}://10.96.0.1", "NO_PROXY"):
        assert named in message
    assert "password" not in message


@pytest.mark.parametrize("use", USES, ids=["kube", "rl", "kube asyncio", "rl asyncio"])
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (403, "application/json", b'{"error": "denied"}'),
        (403, "application/json", b"[]"),
        (200, "text/html; charset=utf-8", b"<html>sign in</html>"),
        (302, "text/html", b""),
    ],
)
def test_json_and_pages_of_a_proxy_are_named_as_its_own(use, status, kind, words):
    with fake_proxy(status, kind, words) as proxy, pytest.raises(NotConfigured) as refused:
        use("http", proxy)

    assert "the proxy http://127.0.0.1" in str(refused.value)


@pytest.mark.parametrize(
    ("use", "kind", "words"),
    [
        (by_kubeconfig, "application/json", b'{"kind": "Status", "message": "no", "code": 403}'),
        (by_url, "application/problem+json", b'{"reason": "Forbidden", "detail": "no"}'),
    ],
    ids=["kube", "rl"],
)
def test_an_error_of_the_server_behind_a_proxy_is_the_servers(use, kind, words):
    with fake_proxy(403, kind, words) as proxy, pytest.raises(RlfleetError) as refused:
        use("http", proxy)

    assert "the proxy" not in str(refused.value)


def test_a_proxy_that_does_not_answer_is_named():
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as gone:
        proxy = f"http://127.0.0.1:{gone.server_address[1]}"

    with pytest.raises(Unavailable, match=f"through the proxy {proxy}.*NO_PROXY"):
        by_kubeconfig("https", proxy)


@pytest.mark.parametrize("proxy", ["socks9://proxy:1", "http://proxy:port"])
def test_a_proxy_that_cannot_be_used_is_named(proxy):
    with pytest.raises(NotConfigured, match=f"the proxy {proxy} cannot be used"):
        by_kubeconfig("https", proxy)


def test_requests_to_workers_read_no_proxy(monkeypatch):
    with fake_proxy(418) as proxy, fake_proxy(200) as worker:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with httpx.Client(transport=DemandTransport()) as http:
            assert http.get(worker).status_code == 200
