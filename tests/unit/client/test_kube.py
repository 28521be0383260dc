"""Requests to the API server, and what its answers mean to the caller."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlfleet import Forbidden, NotConfigured, NotFound, Refused, RlfleetError, Unavailable
from rlfleet.errors import Unauthorized
from rlfleet.kube import AsyncKube, BlockingKube
from rlfleet.kubeconfig import Access
from rlfleet.ports import Change, ConflictError, ExistsError, GoneError, Kind, run_blocking
from rlfleet.sending import broken

ROOT = "https://server:6443/apis/rlfleet.dev/v1alpha1/namespaces/rl"
Answer = Callable[[httpx.Request], httpx.Response]
Run = Callable[[Callable[[Any], Coroutine[Any, Any, Any]], Answer], Any]


def access(**more: Any) -> Access:
    tokens = iter(["first", "second"])
    given = {"server": "https://server:6443", "namespace": "rl", "token": lambda: next(tokens)}
    return Access(**given | {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)} | more)


def blocking(use: Callable[[Any], Any], answer: Answer, **more: Any) -> Any:
    kube = BlockingKube(access(**more), "trainer")
    kube._http.close()
    kube._http = httpx.Client(transport=httpx.MockTransport(answer))
    try:
        return run_blocking(use(kube))
    finally:
        run_blocking(kube.close())


def on_a_loop(use: Callable[[Any], Any], answer: Answer, **more: Any) -> Any:
    async def run() -> Any:
        kube = AsyncKube(access(**more), "trainer")
        await kube._http.aclose()
        kube._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        try:
            return await use(kube)
        finally:
            await kube.close()

    return asyncio.run(run())


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


def status(code: int, reason: str, message: str = "in its words", **details: Any) -> httpx.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return httpx.Response(code, json=body | {"details": details})


async def patched(kube: Any) -> Any:
    return await kube.patch(Kind.WEIGHTS, "policy", {"spec": {"version": "43"}})


async def changes(kube: Any) -> list[Change]:
    return [c async for c in kube.watch(Kind.WEIGHTS, "policy", "7", 12.5)]


def test_a_patch_is_a_merge_patch_with_its_field_manager(run):
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"metadata": {}})

    assert run(patched, answer) == {"metadata": {}}
    (request,) = seen
    assert request.method == "PATCH"
    assert (
        str(request.url)
        == f"{ROOT}/weightversions/policy?fieldManager=trainer&fieldValidation=Strict"
    )
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["authorization"] == "Bearer first"
    assert json.loads(request.content) == {"spec": {"version": "43"}}


def test_the_token_is_read_before_each_request(run):
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={"metadata": {}})

    async def twice(kube: Any) -> None:
        await patched(kube)
        await kube.create(Kind.WEIGHTS, {})

    run(twice, answer)
    assert seen == ["Bearer first", "Bearer second"]


def test_without_a_token_no_header_is_sent(run):
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"sent": "authorization" in request.headers})

    assert run(patched, answer, token=lambda: "") == {"sent": False}


def test_server_name_and_extra_headers_are_sent(run):
    def answer(request: httpx.Request) -> httpx.Response:
        name = request.extensions["sni_hostname"]
        return httpx.Response(200, json={"name": name, "as": request.headers["impersonate-user"]})

    found = run(patched, answer, server_name="api.rl", headers={"Impersonate-User": "jane"})

    assert found == {"name": "api.rl", "as": "jane"}


def test_a_list_selects_one_name_so_that_a_right_on_it_suffices(run):
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == f"{ROOT}/weightversions?fieldSelector=metadata.name%3Dpolicy"
        return httpx.Response(200, json={"metadata": {"resourceVersion": "9"}, "items": []})

    async def listed(kube: Any) -> Any:
        return await kube.list(Kind.WEIGHTS, "policy")

    assert run(listed, answer) == (None, "9")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (partial(status, 401, "Unauthorized"), Unauthorized, "credentials .*; renew the token"),
        (
            partial(status, 403, "Forbidden", name="policy"),
            Forbidden,
            "; give the account this right",
        ),
        (partial(status, 404, "NotFound", name="policy"), NotFound, "the name and the namespace"),
        (
            partial(httpx.Response, 404, text="404 page not found"),
            NotFound,
            "install rlfleet's chart",
        ),
        (partial(status, 409, "AlreadyExists"), ExistsError, "in its words"),
        (partial(status, 409, "Conflict"), ConflictError, "in its words"),
        (partial(status, 410, "Expired"), GoneError, "in its words"),
        (partial(status, 422, "Invalid", "spec.version: only grows"), Refused, "only grows"),
        (partial(status, 429, "TooManyRequests", retryAfterSeconds=3), Unavailable, "in its words"),
        (partial(status, 500, "InternalError"), Unavailable, "500: in its words; try again"),
        (partial(httpx.Response, 502, text="<html>"), Unavailable, "HTTP 502"),
        (partial(status, 400, "BadRequest"), RlfleetError, "400 BadRequest: in its words"),
        (
            partial(status, 400, "BadRequest", 'strict decoding error: unknown field "spec.new"'),
            Refused,
            'unknown field "spec.new"; the CRDs of the cluster',
        ),
        (
            partial(httpx.Response, 302),
            NotConfigured,
            "server answers HTTP 302 .*; check the server",
        ),
        (partial(httpx.Response, 200, html="<p>Sign in</p>"), NotConfigured, "text/html.*sign in"),
        (partial(httpx.Response, 200, json=[]), NotConfigured, "no object of Kubernetes"),
        (
            partial(httpx.Response, 400, text="an HTTP request to an HTTPS server"),
            NotConfigured,
            "check the server",
        ),
    ],
)
def test_an_error_names_the_remedy(run, answer, error, words):
    with pytest.raises(error, match=words) as raised:
        run(patched, lambda _: answer())

    assert type(raised.value) is error


def test_a_refused_patch_names_the_version(run):
    with pytest.raises(Refused) as refused:
        run(patched, lambda _: status(422, "Invalid"))

    assert (refused.value.version, refused.value.reason) == ("43", "Invalid")


@pytest.mark.parametrize("headers", [{}, {"retry-after": "4"}])
def test_retry_after_is_respected(run, headers):
    with pytest.raises(Unavailable) as busy:
        run(patched, lambda _: httpx.Response(503, headers=headers))

    assert busy.value.retry_after_seconds == (4 if headers else None)


def test_an_unreachable_server_is_named(run):
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    for use in (patched, changes):
        with pytest.raises(
            Unavailable,
            match=r"https://server:6443 does not answer: .*; check that it runs, and that this machine can reach it",
        ):
            run(use, answer)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_message_names_https_for_a_port_with_tls(scheme):
    ended = httpx.RemoteProtocolError("Server disconnected without sending a response.")

    said = str(broken(ended, f"{scheme}://server:8090", "", None))

    assert ("begins with https://" in said) == (scheme == "http")


def test_an_untrusted_certificate_is_not_retried(run):
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("bad") from ssl.SSLCertVerificationError("self-signed")

    with pytest.raises(NotConfigured, match="authority"):
        run(patched, answer)


# --- watches --------------------------------------------------------------------------------------


def line(kind: str, version: str, message: str = "") -> bytes:
    found = {"metadata": {"resourceVersion": version}, "message": message}
    return json.dumps({"type": kind, "object": found}, ensure_ascii=False).encode() + b"\n"


class FakeStream(httpx.AsyncByteStream, httpx.SyncByteStream):
    """Sends its pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def __iter__(self):
        yield from self._pieces

    async def __aiter__(self):
        for piece in self._pieces:
            yield piece


def test_a_watch_requests_bookmarks_and_a_timeout(run):
    def answer(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {
            "fieldSelector": "metadata.name=policy",
            "watch": "1",
            "resourceVersion": "7",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "8",
        }
        # The server ends it before: a watch that is silent for this time is broken.
        assert request.extensions["timeout"]["read"] == 12.5
        return httpx.Response(200, stream=FakeStream())

    assert run(changes, answer) == []


def test_events_are_parsed_from_any_chunks(run):
    whole = line("ADDED", "8") + line("MODIFIED", "9", "a\u0085b\u2028c") + line("BOOKMARK", "10")
    for size in (1, 7, len(whole)):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        found = run(changes, lambda _, p=pieces: httpx.Response(200, stream=FakeStream(*p)))
        assert [(c.type, c.resource_version) for c in found] == [
            ("ADDED", "8"),
            ("MODIFIED", "9"),
            ("BOOKMARK", "10"),
        ]


@pytest.mark.parametrize(("code", "error"), [(410, GoneError), (504, Unavailable)])
def test_an_error_event_is_raised(run, code, error):
    event = {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "too old"}}
    stream = (line("ADDED", "8"), json.dumps(event).encode() + b"\n")

    with pytest.raises(error, match="too old"):
        run(changes, lambda _: httpx.Response(200, stream=FakeStream(*stream)))


def test_a_refused_watch_has_the_reason(run):
    with pytest.raises(Forbidden, match="in its words"):
        run(changes, lambda _: status(403, "Forbidden"))


def test_suspending_code_cannot_run_without_a_loop():
    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(asyncio.sleep(0))


# --- other paths ----------------------------------------------------------------------------------


def test_an_absolute_path_starts_at_the_root():
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"items": []})

    async def use(kube: BlockingKube) -> Any:
        kube.text("/api/v1/namespaces/rl/pods/policy-0/log", {"tailLines": "1"})
        return kube.call("PATCH", "/apis/x", {"dryRun": "All"}, {"a": 1}, media="apply-patch+yaml")

    assert blocking(use, answer) == {"items": []}
    assert str(seen[0].url).startswith("https://server:6443/api/v1/namespaces/rl/pods/policy-0/log")
    assert seen[1].headers["content-type"] == "application/apply-patch+yaml"
    assert json.loads(seen[1].content) == {"a": 1}


def test_a_read_of_metadata_alone_asks_for_nothing_else():
    """The doctor asks whether a Secret exists, and must not get its content."""
    media = "json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

    async def use(kube: BlockingKube) -> Any:
        return kube.call("GET", "/api/v1/namespaces/rl/secrets/pull", media=media)

    found = blocking(use, lambda r: httpx.Response(200, json={"accept": r.headers["accept"]}))
    assert found == {"accept": f"application/{media}"}


@pytest.mark.parametrize(("code", "error"), [(403, Forbidden), (404, NotFound), (422, Refused)])
def test_an_error_about_another_resource_names_none_of_ours(code, error):
    async def use(kube: BlockingKube) -> Any:
        return kube.call("GET", "/api/v1/nodes")

    with pytest.raises(error) as raised:
        blocking(use, lambda _: status(code, "Words"))
    assert "in its words" in str(raised.value)
    assert "WeightVersion" not in str(raised.value)


async def test_requests_are_answered_during_hundreds_of_watches():
    """Each reply of the RL API that waits for a rollout keeps a watch open."""
    held, all_held, go_on = 0, asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal held
        if "watch" in request.query:
            held += 1
            if held == 150:
                all_held.set()
            await go_on.wait()
            return web.Response(text="")
        return web.json_response({"a": 1})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    kube = AsyncKube(access(server=str(server.make_url("")).rstrip("/"), token=lambda: "t"), "x")

    async def watch() -> None:
        async for _ in kube.watch(Kind.WEIGHTS, "policy", "1", 60):
            pass

    watches = [asyncio.create_task(watch()) for _ in range(150)]
    try:
        async with asyncio.timeout(30):
            await all_held.wait()
            assert await kube.call("GET", "/readyz") == {"a": 1}
    finally:
        go_on.set()
        await asyncio.gather(*watches, return_exceptions=True)
        await kube.close()
        await server.close()
