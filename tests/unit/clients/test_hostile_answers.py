"""The operator does not trust answers of workers: any answer costs little, and counts only with the
signature of the called pod.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.support.builders import make_worker

from fleet_operator.clients import worker_requests, workers
from fleet_operator.clients.http_client import MAX_BUFFERED_BYTES
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.core.worker_view import Standing
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_worker import protocol

TOKEN = "the-admin-token"
MIB = 1024 * 1024
STATE = json.loads((make_worker(0).serving("41").state() or ...).model_dump_json(by_alias=True))


class HostileWorker:
    """A listener that answers each request with raw bytes.

    Fields:
        status: of the answer.
        body: as it is sent.
        headers: besides the length and the signature.
        length: what the header says; None leaves it out.
        signs: the token of the signature; empty leaves it out.
        endless: sent repeatedly without end.
        signs_each: whether every answer has a signature of its own.
        adapters: `spec.adapters.max` of its fleet.
        stays: whether the connection stays open after the answer.
        heard: the bytes of all requests.
    """

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = json.dumps(STATE).encode()
        self.headers: list[str] = []
        self.length: int | None = -1
        self.signs = TOKEN
        self.signature = ""
        self.signs_each = False
        self.adapters = 0
        self.endless = b""
        self.stays = False
        self.heard = b""
        self.port = 0

    @property
    def addressee(self) -> Addressee:
        return Addressee(
            base_url=f"http://127.0.0.1:{self.port}",
            token=TOKEN,
            pod_uid="uid-0",
            instance="i-0",
            adapters=self.adapters,
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.heard += request
            call = request.partition(b"RLFleet-HMAC-SHA256 ")[2].partition(b"\r\n")[0].decode()
            writer.write(self.head(call) + (b"" if self.endless else self.body))
            while self.endless:
                writer.write(self.endless)
                await writer.drain()
            await writer.drain()
            if self.stays:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def head(self, call: str) -> bytes:
        length = len(self.body) if self.length == -1 else self.length
        lines = [f"HTTP/1.1 {self.status} X", *self.headers]
        lines += [] if length is None else [f"content-length: {length}"]
        if self.signs:
            self.signature = (not self.signs_each and self.signature) or protocol.answer_signature(
                self.signs, call=call, status=self.status, body=self.body
            )
            lines.append(f"{protocol.HEADER_SIGNATURE}: {self.signature}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def says(self, **fields: Any) -> None:
        self.body = json.dumps(STATE | fields).encode()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work on the machine makes no worker silent."""
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 30.0)
    monkeypatch.setattr(worker_requests, "READ_SECONDS", 30.0)


@pytest.fixture
async def worker() -> AsyncIterator[HostileWorker]:
    worker = HostileWorker()
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    worker.port = server.sockets[0].getsockname()[1]
    yield worker
    server.close()


@asynccontextmanager
async def a_client() -> AsyncIterator[WorkerClient]:
    client = WorkerClient()
    yield client
    await client.close()


async def ask(worker: HostileWorker) -> WorkerAnswer:
    async with a_client() as client, asyncio.timeout(30):
        return await client.state(worker.addressee)


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Bytes that Python takes at most while the block runs, beyond what it had."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


async def test_a_valid_answer_counts(worker: HostileWorker) -> None:
    answer = await ask(worker)

    assert not answer.silent
    assert answer.state is not None
    assert answer.state.version == "41"
    assert answer.size_bytes == len(worker.body)


class TestCost:
    @pytest.mark.parametrize("length", [protocol.MAX_ANSWER_BYTES + 1, 10**15, None])
    async def test_an_endless_answer_is_refused_unread(
        self, worker: HostileWorker, length: int | None
    ) -> None:
        worker.length, worker.endless = length, b"x" * 65536
        with peak_memory() as peak:
            answer = await ask(worker)

        assert answer.silent
        assert str(protocol.MAX_ANSWER_BYTES) in answer.message
        assert peak[0] < 4 * MIB

    async def test_unfinished_answers_of_many_workers_share_one_budget(
        self, worker: HostileWorker
    ) -> None:
        """Each stops one byte before the limit of one answer."""
        most = MAX_BUFFERED_BYTES // protocol.MAX_ANSWER_BYTES
        worker.length, worker.body = protocol.MAX_ANSWER_BYTES, bytes(protocol.MAX_ANSWER_BYTES - 1)
        worker.stays = True
        async with a_client() as client, asyncio.timeout(30):
            asked = [client.state(worker.addressee) for _ in range(most + 8)]
            for ended in itertools.islice(asyncio.as_completed(asked), 8):
                assert "unfinished answers of all workers" in (await ended).message

    @pytest.mark.parametrize(
        "endless", [b"x: " + b"y" * 65536, b"x: y\r\n" * 1000, b"HTTP/1.1 100 C\r\n\r\n" * 1000]
    )
    async def test_endless_headers_end_at_the_timeout(
        self, worker: HostileWorker, endless: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_requests, "READ_SECONDS", 0.5)
        worker.endless = endless
        worker.head = lambda _: b"HTTP/1.1 100 C\r\n"
        with peak_memory() as peak:
            assert (await ask(worker)).silent

        assert peak[0] < 16 * MIB

    async def test_redirects_are_not_followed(self, worker: HostileWorker) -> None:
        other = HostileWorker()
        server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        worker.status, worker.headers = 307, [f"location: http://127.0.0.1:{port}/v1/worker/state"]
        answer = await ask(worker)
        server.close()

        assert answer.silent
        assert other.heard == b""

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"[" * 300_000, id="a bottomless list"),
            pytest.param(b'{"source":' * 30_000, id="a bottomless object"),
            pytest.param(b'{"adapters":[' + b"1," * 150_000 + b"1]}", id="a list of nothing"),
            pytest.param(b'{"protocol":' + b"9" * 300_000 + b"}", id="a number without an end"),
            pytest.param(b'{"worker":"' + b"x" * 300_000 + b'"}', id="a long text"),
        ],
    )
    async def test_an_invalid_state_counts_as_no_answer_at_little_cost(
        self, worker: HostileWorker, body: bytes
    ) -> None:
        worker.body, worker.adapters = body, protocol.MOST_ADAPTERS
        worst, done = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal worst
            while not done.is_set():
                began = time.thread_time()  # a machine that halts is not the parser's cost
                await asyncio.sleep(0.01)
                worst = max(worst, time.thread_time() - began)

        watching = asyncio.create_task(watch())
        answer = await ask(worker)
        done.set()
        await watching

        assert answer.silent
        assert "not of this protocol" in answer.message or "lists and" in answer.message
        assert worst < 1.0  # seconds; about 0.05 on an idle core


class TestBounds:
    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"worker": "x" * 2000}, id="a long name"),
            pytest.param({"version": "x" * 2000}, id="a long version"),
            pytest.param({"uptime_seconds": 1e300}, id="an age beyond all bounds"),
            pytest.param({"requests_running": -1}, id="a negative number of requests"),
            pytest.param({"sessions": -1}, id="a negative number of sessions"),
            pytest.param(
                {"epoch": {"term": 2**31 - 1, "sequence": 1}}, id="a term without successor"
            ),
            pytest.param({"adapters": [{"name": "a", "version": "1"}] * 2000}, id="many adapters"),
            pytest.param({"phase": "x" * 100}, id="a long phase"),
            pytest.param({"phase": "two words"}, id="a phase that is not one word"),
        ],
    )
    async def test_a_state_beyond_its_limits_counts_as_no_answer(
        self, worker: HostileWorker, fields: dict[str, Any]
    ) -> None:
        worker.says(**fields)

        assert (await ask(worker)).silent

    @pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
    async def test_an_age_of_nan_counts_as_no_answer(
        self, worker: HostileWorker, number: bytes
    ) -> None:
        worker.says(uptime_seconds=5.0)
        before, field, after = worker.body.partition(b'"uptime_seconds": 5.0')
        assert field
        worker.body = before + b'"uptime_seconds": ' + number + after

        assert (await ask(worker)).silent

    async def test_a_negative_age_becomes_zero(self, worker: HostileWorker) -> None:
        worker.says(uptime_seconds=-5.0)
        answer = await ask(worker)

        assert answer.state is not None
        assert answer.state.uptime_seconds == 0

    @pytest.mark.parametrize("adapters", [0, 1, 8, protocol.MOST_ADAPTERS])
    async def test_the_longest_real_state_is_accepted(
        self, worker: HostileWorker, adapters: int
    ) -> None:
        """Every slot is taken, each text has its longest length, and each version has been refused."""
        one = {"version": "v" * 63, "run_id": "r" * 63, "digest": "sha256:" + "f" * 64}
        one |= {"source": {"path": "/" + "p" * 1023}}
        staged = one | {"size_bytes": 2**45, "in_memory": True}
        adapter = one | {"name": "n" * 63, "size_bytes": 2**40, "requests": 10**6}
        adapter |= {"staged": staged, "retiring": [{"version": "v" * 63, "requests": 10**6}]}
        failure = {"version": "v" * 63, "run_id": "r" * 63, "reason": "NoAdapterSlot"}
        failure |= {"age_seconds": 123456.789, "message": "[1, 2], " * 125}
        of_adapter = failure | {"name": "n" * 63}
        slots = adapters + 1 if adapters else 0
        state = protocol.WorkerState.model_validate(
            STATE
            | one
            | {
                "staged": staged,
                "remarks": ["r" * 500] * 8,
                "stage_failure": failure,
                "earlier_stage_failures": [failure] * 16,
                "load_failure": failure,
                "adapters": [adapter] * slots,
                "adapter_failure": of_adapter if slots else None,
                "adapter_failures": [of_adapter] * min(slots, 32),
            }
        )
        error = protocol.ErrorDetail(reason=protocol.Reason.BROKEN, message="m" * 1000)
        worker.status = 409
        worker.body = protocol.ErrorReply(error=error, state=state).model_dump_json().encode()
        worker.adapters = adapters
        answer = await ask(worker)

        assert answer.state is not None, answer.message
        assert len(answer.state.adapters) == slots

    async def test_an_answer_longer_than_the_states_of_its_fleet_counts_as_no_answer(
        self, worker: HostileWorker
    ) -> None:
        worker.says(x="x" * protocol.max_answer_bytes(0))
        answer = await ask(worker)
        worker.adapters, worker.signs_each = 16, True
        other = await ask(worker)

        assert answer.silent
        assert str(protocol.max_answer_bytes(0)) in answer.message
        assert not other.silent

    async def test_an_answer_with_more_parts_than_a_state_has_counts_as_no_answer(
        self, worker: HostileWorker
    ) -> None:
        worker.says(x=[[]] * protocol.max_answer_parts(0))
        answer = await ask(worker)

        assert answer.silent
        assert str(protocol.max_answer_parts(0)) in answer.message


class TestTime:
    """The costliest answers of many workers at once."""

    async def test_the_loop_gets_a_turn_between_two_large_answers(
        self, worker: HostileWorker
    ) -> None:
        worker.adapters, worker.signs_each = protocol.MOST_ADAPTERS, True
        worker.says(x={f"{n:x}": 0 for n in range(25_000)})
        turn, ended_in = 0, list[int]()

        async def count_turns() -> None:
            nonlocal turn
            while len(ended_in) < 64:
                turn += 1
                await asyncio.sleep(0)

        async with a_client() as client, asyncio.timeout(60):
            asked = [client.state(worker.addressee) for _ in range(64)]
            for each in asked:
                each.add_done_callback(lambda _: ended_in.append(turn))
            await asyncio.gather(count_turns(), *asked)

        answers = [each.result() for each in asked]
        assert not any(a.silent for a in answers)
        assert len(set(ended_in)) == 64
        assert min(a.cost_seconds for a in answers) > 0


class TestSignature:
    async def test_the_admin_token_is_never_sent(self, worker: HostileWorker) -> None:
        worker.signs = ""
        await ask(worker)

        assert b"GET /v1/worker/state" in worker.heard
        assert TOKEN.encode() not in worker.heard
        assert b"earer" not in worker.heard

    @pytest.mark.parametrize("signs", ["", "another-token"])
    async def test_an_unsigned_answer_counts_as_no_answer(
        self, worker: HostileWorker, signs: str
    ) -> None:
        worker.signs = signs
        answer = await ask(worker)

        assert answer.silent
        assert (answer.state, answer.reason) == (None, None)
        assert "not signed" in answer.message

    async def test_an_answer_to_an_earlier_call_counts_as_no_answer(
        self, worker: HostileWorker
    ) -> None:
        assert not (await ask(worker)).silent
        recorded = worker.signature
        answer = await ask(worker)  # the signature of the first answer is sent again

        assert worker.signature == recorded
        assert answer.silent

    async def test_an_invalid_signature_counts_as_no_answer(self, worker: HostileWorker) -> None:
        worker.signature = "\xff\xfe"

        assert (await ask(worker)).silent

    async def test_an_unsigned_401_counts_as_no_answer_and_suggests_the_token(
        self, worker: HostileWorker
    ) -> None:
        worker.signs, worker.status = "", 401
        answer = await ask(worker)

        assert answer.silent
        assert answer.reason is protocol.Reason.UNAUTHORIZED

    @pytest.mark.parametrize(
        ("pod_uid", "silence"),
        [
            ("uid-7", "another pod answers at this address: policy-7"),
            ("", "another pod answers at this address: policy-7"),
            (None, "the worker at this address does not know its pod"),
        ],
    )
    async def test_the_state_of_another_pod_is_ignored(
        self, worker: HostileWorker, pod_uid: str | None, silence: str
    ) -> None:
        """Addresses are used again: a worker of the same fleet signs with the same token."""
        worker.says(worker="policy-7", pod_uid=pod_uid)
        answer = await ask(worker)
        cache, pod = WorkerCache(), make_worker(0).pod_view()
        cache.begin_read(pod, 1)
        cache.end_read(pod, answer, 2, term=0)
        view = cache.view(pod, 3)

        assert (view.state, view.standing) == (None, Standing.UNKNOWN)
        assert view.silence.startswith(silence)

    async def test_a_refusal_as_the_wrong_pod_counts_as_no_answer(
        self, worker: HostileWorker
    ) -> None:
        error = {"reason": "WrongPod", "message": "this is another"}
        worker.status, worker.body = 421, json.dumps({"error": error}).encode()
        answer = await ask(worker)

        assert answer.silent
        assert answer.message.startswith("another pod answers at this address")
