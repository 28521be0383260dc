"""The Kubernetes client against a real HTTP server: requests as the API wants them, every answer
and every accident mapped to the error that says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration
from tests.support.present import present
from tests.support.waiting import soon

from fleet_operator.clients import kube as kube_module
from fleet_operator.clients.kube import REQUESTS_AT_ONCE, KubeClient, canonical
from fleet_operator.errors import (
    Broken,
    Conflict,
    FleetError,
    NotFound,
    Retryable,
    Silent,
    Terminal,
    Unknown,
)
from fleet_operator.ports import UNREAD_BYTES, Kube

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATH = "/api/v1/namespaces/rl/pods"
WRITES = ["create", "replace", "apply", "merge"]
CHANGES = (*WRITES, "delete")


class Api:
    """A server whose answers the test writes."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str], Any]] = []
        self.handler: Handler = self.fine
        app = web.Application(client_max_size=10**8)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.server = TestServer(app)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        query, headers = dict(request.query), dict(request.headers)
        self.requests.append((request.method, request.path, query, headers, body))
        return await self.handler(request)

    async def fine(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Pod", "metadata": {"name": "policy-0"}})

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            text = body if isinstance(body, str) else json.dumps(body or {})
            names = {k.replace("_", "-"): v for k, v in headers.items()}
            return web.Response(
                status=status, text=text, content_type="application/json", headers=names
            )

        self.handler = handler


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    await api.server.start_server()
    yield api
    await api.server.close()


def configuration(api: Api, **fields: Any) -> Configuration:
    made = Configuration()
    made.host = str(api.server.make_url("")).rstrip("/")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
async def kube(api: Api) -> AsyncIterator[KubeClient]:
    client = KubeClient(configuration(api))
    yield client
    await client.close()


async def write(kube: KubeClient, how: str) -> Any:
    return await getattr(kube, how)(PATH, {"kind": "Pod"})


async def ask(kube: KubeClient, how: str) -> Any:
    if how == "get":
        return await kube.get(PATH)
    return await (kube.delete(PATH, uid="u") if how == "delete" else write(kube, how))


class TestRequests:
    async def test_a_get_returns_the_object(self, api, kube):
        await kube.get(PATH, {"labelSelector": "a=b,c=d", "limit": "5"})
        ((method, path, query, headers, body),) = api.requests

        assert (method, path, body) == ("GET", PATH, None)
        assert query == {"labelSelector": "a=b,c=d", "limit": "5"}
        assert headers["Accept"] == "application/json"
        assert headers["User-Agent"] == "rlfleet-operator"

    @pytest.mark.parametrize(
        ("how", "method", "content_type", "query"),
        [
            pytest.param("create", "POST", "application/json", {}, id="creating"),
            pytest.param("replace", "PUT", "application/json", {}, id="replacing"),
            pytest.param(
                "apply",
                "PATCH",
                "application/apply-patch+yaml",
                {"force": "true"},
                id="server-side apply",
            ),
            pytest.param("merge", "PATCH", "application/merge-patch+json", {}, id="merging"),
        ],
    )
    async def test_a_write_sends_the_object(self, api, kube, how, method, content_type, query):
        await write(kube, how)
        ((sent, path, asked, headers, body),) = api.requests

        assert (sent, path, body) == (method, PATH, {"kind": "Pod"})
        assert headers["Content-Type"].split(";")[0] == content_type
        assert asked == {"fieldManager": "rlfleet-operator"} | query

    async def test_a_delete_names_the_uid(self, api, kube):
        await kube.delete(f"{PATH}/policy-0", uid="u-1")
        ((method, path, _, _, body),) = api.requests

        assert (method, path) == ("DELETE", f"{PATH}/policy-0")
        assert body == {"preconditions": {"uid": "u-1"}}

    @pytest.mark.parametrize("status", [404, 409])
    async def test_deleting_a_missing_or_replaced_object_succeeds(self, api, kube, status):
        api.answer(status)
        await kube.delete(f"{PATH}/policy-0", uid="u-1")

    async def test_an_answer_is_the_servers_object(self, kube):
        assert (await kube.get(PATH))["metadata"]["name"] == "policy-0"
        assert (await write(kube, "create"))["metadata"]["name"] == "policy-0"

    async def test_the_token_is_read_for_each_request(self, api):
        tokens = iter(("first", "second"))

        async def refresh(configuration: Configuration) -> None:
            configuration.api_key["BearerToken"] = f"bearer {next(tokens)}"

        made = configuration(api, refresh_api_key_hook=refresh)
        kube = KubeClient(made)
        try:
            await kube.get(PATH)
            await kube.get(PATH)
        finally:
            await kube.close()

        sent = [headers["Authorization"] for _, _, _, headers, _ in api.requests]
        assert sent == ["Bearer first", "Bearer second"]

    async def test_without_a_token_no_header_is_sent(self, api, kube):
        await kube.get(PATH)

        assert "Authorization" not in api.requests[0][3]


class TestAnswers:
    @pytest.mark.parametrize(
        ("error", "statuses"),
        [
            (Terminal, (400, 401, 403, 405, 413, 415, 422)),
            (Retryable, (429, 500, 502, 503, 504)),
        ],
    )
    async def test_a_refusal_has_its_kind_of_error(self, api, kube, error, statuses):
        for status in statuses:
            api.answer(status, {"message": "the server's words"})
            with pytest.raises(FleetError, match=f"{status} the server's words") as raised:
                await ask(kube, "get")
            assert type(raised.value) is error, status

    @pytest.mark.parametrize("how", ["get", *WRITES, "delete"])
    async def test_a_refusal_names_the_object(self, api, kube, how):
        api.answer(503)
        with pytest.raises(Retryable) as raised:
            await ask(kube, how)

        assert PATH in str(raised.value)

    @pytest.mark.parametrize("how", WRITES)
    @pytest.mark.parametrize(
        ("status", "error"), [(404, NotFound), (409, Conflict), (410, Conflict)]
    )
    async def test_an_error_has_the_status_of_the_object(self, api, kube, how, status, error):
        api.answer(status)
        with pytest.raises(error):
            await write(kube, how)

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            pytest.param("7", 7, id="seconds"),
            pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", None, id="a date is not understood"),
            pytest.param("soon", None, id="nor are words"),
        ],
    )
    async def test_retry_after_is_reported(self, api, kube, header, seconds):
        api.answer(429, Retry_After=header)
        with pytest.raises(Retryable) as raised:
            await kube.get(PATH)

        assert raised.value.after_seconds == seconds

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param("", id="no body"),
            pytest.param("<html>bad gateway</html>", id="a page of a proxy"),
            pytest.param('"words"', id="a string"),
            pytest.param("[1]", id="a list"),
            pytest.param('{"message": null}', id="no message"),
        ],
    )
    @pytest.mark.parametrize("status", [403, 502])
    async def test_a_refusal_in_an_unknown_format_is_a_refusal(self, api, kube, status, body):
        api.answer(status, body)
        with pytest.raises((Terminal, Retryable), match=str(status)):
            await kube.get(PATH)

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param("<html>log in</html>", id="a page of a proxy"),
            pytest.param('{"kind": "Pod', id="half an object"),
            pytest.param("", id="nothing"),
        ],
    )
    @pytest.mark.parametrize(("how", "error"), [("get", Retryable), ("create", Unknown)])
    async def test_an_unreadable_success_counts_as_no_answer(self, api, kube, how, error, body):
        api.answer(200, body or " ")
        with pytest.raises(FleetError) as raised:
            await ask(kube, how)

        assert type(raised.value) is error


class TestFailures:
    async def closes(self, request: web.Request) -> web.StreamResponse:
        present(request.transport).close()
        return web.Response()

    @pytest.mark.parametrize("how", CHANGES)
    async def test_a_change_without_an_answer_may_have_taken_effect(self, api, kube, how):
        api.handler = self.closes
        with pytest.raises(Unknown):
            await ask(kube, how)

    async def test_a_get_without_an_answer_has_changed_nothing(self, api, kube):
        api.handler = self.closes
        with pytest.raises(Retryable) as raised:
            await kube.get(PATH)

        assert not isinstance(raised.value, Unknown)

    @pytest.mark.parametrize("how", ["get", *WRITES])
    async def test_a_failed_connection_has_sent_nothing(self, api, kube, how):
        await api.server.close()
        with pytest.raises(Retryable) as raised:
            await ask(kube, how)

        assert not isinstance(raised.value, Unknown)

    @pytest.mark.parametrize(("how", "error"), [("get", Retryable), ("create", Unknown)])
    async def test_a_request_ends_at_its_timeout(self, api, kube, how, error, monkeypatch):
        monkeypatch.setattr(kube_module, "REQUEST_TIMEOUT_SECONDS", 0.1)
        released = asyncio.Event()

        async def hangs(_: web.Request) -> web.StreamResponse:
            await released.wait()
            return web.json_response({})

        api.handler = hangs
        with pytest.raises(FleetError) as raised:
            await ask(kube, how)
        released.set()

        assert type(raised.value) is error
        assert str(raised.value).strip().endswith(("Error", "timeout"))

    async def test_an_incomplete_answer_counts_as_no_answer(self, api, kube):
        async def half(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(b'{"kind": ')
            present(request.transport).close()
            return response

        api.handler = half
        with pytest.raises(Unknown):
            await write(kube, "create")


def stream(*lines: bytes, then: str = "end") -> Handler:
    """A watch that sends these bytes, and then ends, breaks or goes silent."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if then == "break":
            present(request.transport).close()
        elif then == "silence":
            await asyncio.Event().wait()
        return response

    return handler


def event(kind: str, **body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def watched(kube: KubeClient) -> list[dict[str, Any]]:
    return [e async for e in kube.watch(PATH, {"resourceVersion": "5"})]


class TestWatches:
    async def test_events_are_returned_until_the_server_ends_the_stream(self, api, kube):
        api.handler = stream(event("ADDED", n=1), event("MODIFIED", n=2), event("BOOKMARK", n=3))
        events = await watched(kube)

        assert [e["object"]["n"] for e in events] == [1, 2, 3]
        assert api.requests[0][2] == {"resourceVersion": "5", "watch": "1"}

    async def test_an_event_may_arrive_in_pieces(self, api, kube):
        whole = event("ADDED", text="é" * 10)
        api.handler = stream(whole[:15], whole[15:40], whole[40:])

        assert [e["object"]["text"] for e in await watched(kube)] == ["é" * 10]

    async def test_events_behind_the_largest_object_of_etcd_are_delivered(self, api, kube):
        """1.5 MiB in etcd are 8 MB as JSON, since one character becomes six."""
        metadata = {"name": "bomb", "uid": "u", "namespace": "rl", "resourceVersion": "6"}
        bomb = event("ADDED", metadata=metadata, spec={"args": ["<" * 1_400_000]})
        api.handler = stream(bomb.replace(b"<", rb"\u003c"), event("ADDED", n=2))
        large, behind = (e["object"] for e in await watched(kube))

        assert large["metadata"] == metadata
        assert large[UNREAD_BYTES] > 8_000_000
        assert "spec" not in large
        assert behind["n"] == 2

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            pytest.param(410, Conflict, id="410: the version is too old"),
            pytest.param(429, Retryable, id="429"),
            pytest.param(500, Retryable, id="500"),
            pytest.param(403, Terminal, id="403"),
        ],
    )
    @pytest.mark.parametrize("where", ["status", "event"])
    async def test_an_error_event_has_its_kind_of_error(self, api, kube, where, code, error):
        if where == "status":
            api.answer(code, {"message": "words", "code": code})
        else:
            api.handler = stream(event("ADDED", n=1), event("ERROR", code=code, message="words"))
        with pytest.raises(FleetError) as raised:
            await watched(kube)

        assert type(raised.value) is error
        assert f"{code} words" in str(raised.value)

    async def test_an_error_without_a_code_may_be_retried(self, api, kube):
        api.handler = stream(event("ERROR", message="words"))
        with pytest.raises(Retryable):
            await watched(kube)

    @pytest.mark.parametrize(
        "handler",
        [
            pytest.param(stream(event("ADDED", n=1), then="break"), id="the connection breaks"),
            pytest.param(
                stream(event("ADDED", n=1), b'{"type": "ADD', then="break"),
                id="the connection breaks within an event",
            ),
            pytest.param(
                stream(event("ADDED", n=1), b'{"type": "ADD'), id="the stream ends within an event"
            ),
            pytest.param(stream(b"<html>log in</html>\n"), id="something else than events comes"),
            pytest.param(stream(b"[]\n"), id="a line that is not an event"),
        ],
    )
    async def test_a_broken_stream_may_be_resumed(self, api, kube, handler):
        api.handler = handler
        with pytest.raises(Broken):
            await watched(kube)

    async def test_a_silent_stream_ends_at_its_timeout(self, api, kube, monkeypatch):
        monkeypatch.setattr(kube_module, "WATCH_SILENCE_SECONDS", 0.1)
        api.handler = stream(event("ADDED", n=1), then="silence")
        with pytest.raises(Silent):
            await watched(kube)

    async def test_ending_a_watch_releases_its_connection(self, api, kube):
        api.handler = stream(event("ADDED", n=1), then="silence")
        async with contextlib.aclosing(kube.watch(PATH, {"resourceVersion": "5"})) as events:
            async for _ in events:
                break
        api.handler = api.fine
        await kube.get(PATH)

    async def test_many_watches_do_not_block_requests(self, api, kube):
        """One watch a namespace: a hundred of them must leave room for everything else."""
        api.handler = stream(event("ADDED", n=1), then="silence")
        watches = [kube.watch(f"{PATH}/{n}", {"resourceVersion": "5"}) for n in range(100)]
        async with asyncio.timeout(30):
            await asyncio.gather(*(anext(w) for w in watches))
            api.handler = api.fine
            await kube.get(PATH)
        for opened in watches:
            await opened.aclose()


class TestHooks:
    def test_every_request_there_is_is_a_write_or_a_read_here(self):
        verbs = {name for name, _ in inspect.getmembers(Kube, callable) if name[0] != "_"}
        assert verbs == {*CHANGES, "get", "watch"}

    @pytest.mark.parametrize("how", CHANGES)
    async def test_a_write_that_is_refused_is_not_sent(self, api, kube, how):
        def refuse(path: str) -> None:
            raise Terminal(path)

        kube.hooks.before_write = refuse
        with pytest.raises(Terminal, match=PATH):
            await ask(kube, how)
        assert api.requests == []
        await kube.get(PATH)

    async def test_a_write_is_checked_when_its_turn_comes(self, api, kube):
        """The process may have been frozen since it was begun."""
        leads, held = True, asyncio.Event()

        def check(path: str) -> None:
            if not leads:
                raise Terminal(path)

        async def holds(_: web.Request) -> web.StreamResponse:
            await held.wait()
            return web.json_response({})

        api.handler, kube.hooks.before_write = holds, check
        paths = [f"/api/v1/namespaces/{n}/pods" for n in range(REQUESTS_AT_ONCE)]
        first = [asyncio.create_task(kube.get(path)) for path in paths]
        await soon(lambda: len(api.requests) == REQUESTS_AT_ONCE)
        write = asyncio.create_task(kube.apply(PATH, {}))
        await asyncio.sleep(0)
        leads = False
        held.set()
        with pytest.raises(Terminal):
            await write
        await asyncio.gather(*first)
        assert len(api.requests) == REQUESTS_AT_ONCE

    @pytest.mark.parametrize("how", ["get", *CHANGES])
    async def test_a_request_is_measured_by_its_verb_also_if_it_is_refused(self, api, kube, how):
        ended: list[str] = []
        kube.hooks.after = lambda verb, seconds: ended.append(verb) if seconds > 0 else None
        await ask(kube, how)
        api.answer(500)
        with pytest.raises(Retryable):
            await ask(kube, how)
        assert ended == [how, how]

    async def test_watches_and_requests_that_are_cancelled_are_not_measured(self, api, kube):
        ended: list[str] = []
        kube.hooks.after = lambda verb, _: ended.append(verb)
        api.handler = stream(event("ADDED", n=1))
        assert len(await watched(kube)) == 1
        api.handler = stream(then="silence")
        request = asyncio.create_task(kube.get(PATH))
        await soon(lambda: len(api.requests) == 2)
        request.cancel()
        await asyncio.wait([request])
        assert ended == []


class TestConnecting:
    async def test_without_a_cluster_the_message_names_what_is_missing(self, monkeypatch, tmp_path):
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        with pytest.raises(Terminal, match="neither a pod's service account nor a kubeconfig"):
            await KubeClient.connect()

    async def test_a_kubeconfig_is_used(self, api, monkeypatch, tmp_path):
        host = str(api.server.make_url("")).rstrip("/")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": host}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        # The client library reads the variable when it is imported.
        monkeypatch.setattr(
            "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path)
        )
        kube = await KubeClient.connect()
        try:
            await kube.get(PATH)
        finally:
            await kube.close()

        assert api.requests[0][3]["Authorization"] == "Bearer secret"


def test_a_body_is_serialised_as_the_api_server_does():
    """Else it refuses later writes to a ControllerRevision: `data` of other bytes."""
    body = {"z": {"b": 1, "a": "<\u00e9 & \u2028>"}, "a": [True, None]}

    assert canonical(body) == (
        b'{"a":[true,null],"z":{"a":"\\u003c\xc3\xa9 \\u0026 \\u2028\\u003e","b":1}}'
    )
