"""The worker client against a real HTTP server: calls as the protocol has them, and no answer,
whatever it is, that raises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.builders import make_worker, target

from fleet_operator.api.fleet import Rollout
from fleet_operator.clients import worker_requests
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.core import actions, worker_calls
from fleet_operator.core.actions import (
    Admit,
    Apply,
    CanaryPrompts,
    CompareFiles,
    CompareLora,
    Fence,
    Load,
    Pause,
    PutLora,
    RemoveLora,
    Resume,
    Stage,
    StageLora,
    WorkerCall,
)
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_worker import protocol
from fleet_worker.protocol import Epoch, Reason

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
EPOCH = Epoch(term=3, sequence=7)
VIEW = make_worker().serving("41").view()
PAUSED = make_worker().paused("42").view()
JOINER = make_worker().joining("42").view()
ROLLOUT = Rollout.model_validate(
    {
        "pause": {"mode": "Wait", "drainTimeoutSeconds": 30},
        "timeouts": {"stageSeconds": 900, "loadSeconds": 600},
    }
)
STATE = VIEW.state.model_dump(mode="json", by_alias=True) if VIEW.state else {}


def prompts() -> CanaryPrompts:
    return CanaryPrompts(
        pod_uid="u",
        pod_name="policy-0",
        reason="",
        version="42",
        prompts=("a", "b"),
        max_tokens=8,
        compare_with="41",
        timeout_seconds=60,
    )


GOAL = target("42")
REPOSITORY = GOAL.source.model_validate({"huggingFace": {"repo": "lab/m"}})
FROM_REPOSITORY = replace(GOAL, source=REPOSITORY)
COMMIT = {"huggingFace": {"repo": "lab/m", "revision": "main"}}
FILES = {"version": "42", "source": {"path": "/weights/step_42"}}
PAUSE = {
    "mode": "wait",
    "drain_timeout_seconds": 30,
    "lease_seconds": worker_calls.LEASE_SECONDS,
}
DRIVES = {"holder": "operator"}
LONG = "it " + "failed " * 100
COMPARES = CompareFiles(
    pod_uid=VIEW.pod.uid,
    pod_name=VIEW.pod.name,
    reason="x",
    version="42",
    source=GOAL.source,
    timeout_seconds=60,
)
STAGES_ADAPTER = worker_calls.put_lora(VIEW, "sql", GOAL, ROLLOUT, reason="x", kind=StageLora)
ADAPTER_PATH = protocol.ADAPTERS_PATH + "sql"
ROUTES: dict[type[WorkerCall], tuple[str, Any]] = {
    Stage: (protocol.STAGE_PATH, protocol.StageRequest),
    CompareFiles: (protocol.STAGE_PATH, protocol.StageRequest),
    Pause: (protocol.PAUSE_PATH, protocol.PauseRequest),
    PutLora: (ADAPTER_PATH, protocol.AdapterRequest),
    StageLora: (ADAPTER_PATH, protocol.AdapterRequest),
    CompareLora: (ADAPTER_PATH, protocol.AdapterRequest),
    RemoveLora: (ADAPTER_PATH, protocol.AdapterRemoval),
    Load: (protocol.LOAD_PATH, protocol.LoadRequest),
    Apply: (protocol.APPLY_PATH, protocol.ApplyRequest),
    Resume: (protocol.RESUME_PATH, protocol.ResumeRequest),
    Admit: (protocol.ADMIT_PATH, protocol.AdmitRequest),
    Fence: (protocol.FENCE_PATH, protocol.FenceRequest),
    CanaryPrompts: (protocol.PROBE_PATH, protocol.PromptsRequest),
}
CALLS: list[tuple[WorkerCall, dict[str, Any]]] = [
    (worker_calls.stage(VIEW, GOAL, ROLLOUT, reason="x"), FILES),
    (COMPARES, FILES | {"digest": None}),
    (worker_calls.stage(VIEW, FROM_REPOSITORY, ROLLOUT, reason="x"), FILES | {"source": COMMIT}),
    (worker_calls.pause(VIEW, ROLLOUT, reason="x"), PAUSE | DRIVES),
    (worker_calls.put_lora(VIEW, "sql", GOAL, ROLLOUT, reason="x"), FILES | DRIVES),
    (
        worker_calls.compare(VIEW, GOAL, ROLLOUT, adapter="sql"),
        FILES | {"stage_only": True, "digest": None},
    ),
    (STAGES_ADAPTER, FILES | DRIVES | {"stage_only": True}),
    (worker_calls.remove_lora(VIEW, "sql", reason=""), DRIVES),
    (worker_calls.load(VIEW, GOAL, ROLLOUT, reason="x"), {"version": "42"} | DRIVES),
    (worker_calls.apply(VIEW, GOAL, ROLLOUT, reason="x"), {"version": "42"} | PAUSE),
    (worker_calls.resume(PAUSED, reason="x"), {"version": "42"} | DRIVES),
    (worker_calls.admit(JOINER, reason="x"), {"version": "42"} | DRIVES),
    (worker_calls.take_out_of_service(VIEW, reason=LONG), {"reason": LONG[:500]}),
    (prompts(), {"prompts": ["a", "b"], "max_tokens": 8}),
]


def call_of(method: str, path: str, headers: Mapping[str, str], body: bytes) -> protocol.SignedCall:
    return protocol.SignedCall(
        method=method,
        path=path,
        pod_uid=headers[protocol.HEADER_POD_UID],
        instance=headers[protocol.HEADER_INSTANCE],
        nonce=headers[protocol.HEADER_NONCE],
        body_digest=protocol.body_digest(body),
    )


def proven(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a call is signed with `secret`, as the protocol says."""
    signature = protocol.call_signature("secret", call_of(method, path, headers, body))
    return headers["Authorization"] == f"{protocol.SIGNATURE_SCHEME} {signature}"


class Worker:
    """A server whose answers the test writes, and which signs them.

    Fields:
        signs: the token of its signatures; empty, and it signs nothing.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.signs = "t"
        self.connections: set[Any] = set()
        self.handler: Handler = self.fine
        self.expected, self.reached = 0, asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.server = TestServer(app)

    def at(self, token: str = "t") -> Addressee:  # noqa: S107 - a made-up one
        url = str(self.server.make_url("")).rstrip("/")
        self.signs = token
        return Addressee(base_url=url, token=token, pod_uid="uid-0", instance="i-0")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path, request.headers, body))
        self.connections.add(request.transport)
        if len(self.requests) == self.expected:
            self.reached.set()
        response = await self.handler(request)
        if isinstance(response, web.Response) and not response.prepared and self.signs:
            self.sign(request, response)
        return response

    def sign(self, request: web.Request, response: web.Response) -> None:
        """As a worker with the token does."""
        assert isinstance(response.body, bytes)
        response.headers[protocol.HEADER_SIGNATURE] = protocol.answer_signature(
            self.signs,
            call=request.headers["Authorization"].partition(" ")[2],
            status=response.status,
            body=response.body,
        )

    async def fine(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(STATE)

    def expect(self, requests: int) -> asyncio.Event:
        """Set when this number of requests has come."""
        self.expected = requests
        return self.reached

    def answer(self, status: int, body: Any) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(status=status, text=text, content_type="application/json")

        self.handler = handler


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requested before `client`, which makes its question when it is made."""
    monkeypatch.setattr(worker_requests, "READ_SECONDS", 0.1)
    monkeypatch.setattr(actions, "SHORT_CALL_SECONDS", 0.1)


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    await worker.server.start_server()
    yield worker
    await worker.server.close()


@pytest.fixture
async def client() -> AsyncIterator[WorkerClient]:
    client = WorkerClient()
    yield client
    await client.close()


def at(url: str) -> Addressee:
    return Addressee(base_url=url, token="t", pod_uid="uid-0", instance="i-0")


async def load(client: WorkerClient, worker: Worker) -> WorkerAnswer:
    action = worker_calls.load(VIEW, target("42"), ROLLOUT, reason="x")
    return await client.call(worker.at(), action, EPOCH)


class TestCalls:
    @pytest.mark.parametrize(("action", "fields"), CALLS)
    async def test_a_call_follows_the_protocol(self, worker, client, action, fields):
        path, model = ROUTES[type(action)]
        answer = await client.call(worker.at("secret"), action, EPOCH)
        ((method, sent_to, headers, body),) = worker.requests

        verb = "DELETE" if model is protocol.AdapterRemoval else "PUT"
        assert (method, sent_to) == (verb, path)
        assert proven(method, sent_to, headers, body)
        read = model.model_validate_json(body)
        body = json.loads(body)
        assert read.epoch == EPOCH
        assert {k: body.get(k) for k in fields} == fields
        assert set(body) <= {f.alias or n for n, f in model.model_fields.items()}
        assert answer.state == VIEW.state

    def test_every_kind_of_call_is_in_the_table(self):
        assert {type(action) for action, _ in CALLS} == set(get_args(WorkerCall))

    async def test_reading_the_state_is_a_signed_get(self, worker, client):
        answer = await client.state(worker.at("secret"))
        ((method, path, headers, body),) = worker.requests

        assert (method, path, body) == ("GET", protocol.STATE_PATH, b"")
        assert proven(method, path, headers, body)
        assert (answer.state, answer.reason, answer.silent) == (VIEW.state, None, False)

    async def test_connections_are_kept(self, worker, client):
        for _ in range(5):
            await client.state(worker.at())

        assert len(worker.connections) == 1

    async def test_proxies_of_the_environment_are_ignored(self, worker, monkeypatch):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        client = WorkerClient()
        try:
            assert not (await client.state(worker.at())).silent
        finally:
            await client.close()


class TestAnswers:
    @pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 503])
    async def test_a_refusal_has_its_reason_and_the_state(self, worker, client, status):
        error = {"reason": "NotStaged", "message": "nothing is staged"}
        worker.answer(status, {"error": error, "state": STATE})
        answer = await load(client, worker)

        assert (answer.reason, answer.message) == (Reason.NOT_STAGED, "nothing is staged")
        assert (answer.state, answer.silent) == (VIEW.state, False)

    async def test_a_refusal_may_have_no_state(self, worker, client):
        worker.answer(401, {"error": {"reason": "Unauthorized", "message": "no token"}})
        answer = await client.state(worker.at())

        assert (answer.reason, answer.state) == (Reason.UNAUTHORIZED, None)

    @pytest.mark.parametrize("status", [200, 302, 404, 500])
    @pytest.mark.parametrize(
        "body",
        [
            pytest.param("", id="nothing"),
            pytest.param("<html>", id="a page"),
            pytest.param('{"phase": "serving"', id="half a state"),
            pytest.param({"phase": "flying"}, id="a phase that does not exist, and no more"),
            pytest.param(
                {"error": {"reason": "no word", "message": ""}}, id="a reason of two words"
            ),
            pytest.param([], id="a list"),
            pytest.param("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), id="noise"),
        ],
    )
    async def test_an_invalid_answer_counts_as_no_answer(self, worker, client, status, body):
        worker.answer(status, body)
        answer = await load(client, worker)

        assert answer.silent
        assert answer.state is None
        assert str(status) in answer.message


class TestFailures:
    async def test_a_refused_connection_counts_as_no_answer(self, worker, client):
        there = worker.at()
        await worker.server.close()
        answer = await client.state(there)

        assert answer.silent
        assert answer.message

    async def test_an_invalid_address_counts_as_no_answer(self, client):
        assert (await client.state(at("http://None:1"))).silent

    @pytest.mark.parametrize("how", ["question", "call"])
    async def test_a_dripping_answer_ends_at_the_timeout(self, short_timeouts, worker, client, how):
        """Each byte comes in time and the whole answer never."""

        async def drips(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(1000):
                await response.write(b" ")
                await asyncio.sleep(0.05)
            return response

        worker.handler = drips
        action = worker_calls.resume(PAUSED, reason="x")
        async with asyncio.timeout(30):
            if how == "question":
                answer = await client.state(worker.at())
            else:
                answer = await client.call(worker.at(), action, EPOCH)

        assert answer.silent

    async def test_a_call_may_last_as_long_as_its_phase_allows(
        self, short_timeouts, worker, client
    ):
        async def slow(_: web.Request) -> web.StreamResponse:
            await asyncio.sleep(0.3)
            return web.json_response(STATE)

        worker.handler = slow
        assert not (await load(client, worker)).silent
        resume = worker_calls.resume(PAUSED, reason="x")
        assert (await client.call(worker.at(), resume, EPOCH)).silent

    async def test_a_cancelled_call_closes_its_connection(self, client):
        asked, closed = asyncio.Event(), asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            while await reader.read(1000):
                pass
            closed.set()
            writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        action = worker_calls.load(VIEW, target("42"), ROLLOUT, reason="x")
        async with server, asyncio.timeout(30):
            task = asyncio.ensure_future(client.call(at(url), action, EPOCH))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await closed.wait()

    async def test_long_calls_leave_connections_for_short_ones(self, worker, client):
        released = asyncio.Event()

        async def stages_for_long(request: web.Request) -> web.StreamResponse:
            if request.path == protocol.STAGE_PATH:
                await released.wait()
            return web.json_response(STATE)

        worker.handler = stages_for_long
        all_asked = worker.expect(20)
        stage = worker_calls.stage(VIEW, target("42"), ROLLOUT, reason="x")
        lasting = [asyncio.ensure_future(client.call(worker.at(), stage, EPOCH)) for _ in range(20)]
        try:
            async with asyncio.timeout(30):
                await all_asked.wait()
                assert not (await client.state(worker.at())).silent
        finally:
            released.set()
            for task in lasting:
                task.cancel()
            await asyncio.wait(lasting)
