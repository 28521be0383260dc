"""The admin port over HTTP, with a fake engine behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.fake_engine import touched
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import ErrorReply, Reason, WorkerState
from fleet_worker.wire.admin.app import AdminApp
from fleet_worker.wire.admin.bearer import BearerFile
from fleet_worker.wire.admin.guard import Guard
from fleet_worker.wire.admin.operator import operator_surface
from fleet_worker.wire.probes import Probes

EPOCH = {"term": 1, "sequence": 1}


class Admin:
    """The application, a client with the token, and what it told others."""

    def __init__(self, bench: Bench, token_file: Path) -> None:
        self.bench = bench
        self.problem: str | None = None
        self.refused: list[Reason] = []
        self.drained = 0
        self.app = AdminApp(
            [operator_surface(bench.agent, lambda: bench.state, self.drain)],
            guard=Guard(BearerFile(token_file), pod_uid="uid-0", instance="i"),
            probes=Probes(bench.agent, lambda: self.problem),
            on_refused=self.refused.append,
        )
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://worker",
            headers={"Authorization": "Bearer right"},
        )

    async def drain(self) -> None:
        self.drained += 1

    async def put(self, call: str, **body: Any) -> httpx.Response:
        return await self.client.put(f"/v1/worker/{call}", json={"epoch": EPOCH, **body})


@pytest.fixture
async def admin(serving: Bench, tmp_path: Path) -> AsyncIterator[Admin]:
    token_file = tmp_path / "token"
    token_file.write_text("right\n")
    made = Admin(serving, token_file)
    yield made
    await made.client.aclose()


async def test_every_call_answers_with_the_whole_state(admin: Admin) -> None:
    path = str(write_tiny(admin.bench.root / "1"))
    replies = [
        await admin.put("stage", version="1", source={"path": path}),
        await admin.put("pause", mode="keep", lease_seconds=30),
        await admin.put("load", version="1"),
        await admin.put("resume", version="1"),
        await admin.put("fence", reason="a test"),
        await admin.put("admit", version="1"),
        await admin.client.get("/v1/worker/state"),
        await admin.client.post("/v1/worker/drain"),
    ]

    assert [reply.status_code for reply in replies] == [200] * len(replies)
    states = [WorkerState.model_validate_json(reply.content) for reply in replies]
    phases = [state.phase for state in states[:6]]
    assert phases == ["serving", "paused", "paused", "serving", "joining", "serving"]
    assert admin.drained == 1
    assert admin.refused == []


async def test_a_refusal_answers_with_reason_message_and_state(admin: Admin) -> None:
    reply = await admin.put("resume", version="7")
    body = ErrorReply.model_validate_json(reply.content)

    assert reply.status_code == 409
    assert body.error.reason is Reason.VERSION_MISMATCH
    assert body.state is not None
    assert body.state.version == "base"
    assert admin.refused == [Reason.VERSION_MISMATCH]


async def test_a_failure_of_the_engine_is_not_the_callers_fault(admin: Admin) -> None:
    await admin.put("stage", version="1", source={"path": str(write_tiny(admin.bench.root / "1"))})
    await admin.put("pause", mode="keep", lease_seconds=30)
    admin.bench.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    reply = await admin.put("load", version="1")

    assert reply.status_code == 500
    assert reply.json()["error"]["reason"] == "ProbeFailed"
    assert reply.json()["state"]["phase"] == "joining"


async def test_a_mistake_of_ours_is_answered_and_logged(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble() -> None:
        raise KeyError("a-secret")

    monkeypatch.setattr(admin, "drained", None)
    monkeypatch.setattr(admin.bench.engine, "resume", stumble)
    await admin.put("pause", mode="keep", lease_seconds=30)
    reply = await admin.put("resume", version="base")

    assert (reply.status_code, reply.json()["error"]["reason"]) == (500, "EngineFailed")
    assert "a-secret" not in reply.text
    assert "PUT /v1/worker/resume failed" in caplog.text
    assert reply.json()["state"]["phase"] == "paused"


async def test_a_held_worker_tells_when_to_come_again(admin: Admin) -> None:
    await admin.put("pause", mode="keep", lease_seconds=30, holder="trainer")
    error = (await admin.put("pause", mode="keep", lease_seconds=30)).json()["error"]

    assert error["reason"] == "HeldByAnother"
    assert error["retry_after_seconds"] == 30


async def test_a_source_in_the_hub_is_written_in_camel_case(admin: Admin) -> None:
    source = {"huggingFace": {"repo": "org/name", "revision": "main"}}
    reply = await admin.put("stage", version="1", source=source)

    assert reply.json()["error"]["reason"] in ("SourceNotFound", "SourceOutsideRoots")
    assert '"huggingFace"' in (await admin.client.get("/v1/worker/state")).text


@pytest.mark.parametrize(
    ("call", "body"),
    [
        pytest.param("pause", {}, id="fields missing"),
        pytest.param("pause", {"mode": "KEEP", "lease_seconds": 1}, id="a mode in capitals"),
        pytest.param("pause", {"mode": "keep", "lease_seconds": 0}, id="a lease of no time"),
        pytest.param("pause", {"mode": "keep", "lease_seconds": "inf"}, id="a lease for ever"),
        pytest.param("load", {"version": "../../etc"}, id="a version with slashes"),
        pytest.param("load", {"version": ""}, id="an empty version"),
        pytest.param("load", {"version": "x" * 64}, id="a version too long for a label"),
        pytest.param("stage", {"version": "1", "source": {}}, id="no source"),
        pytest.param(
            "stage",
            {"version": "1", "source": {"path": "/a", "huggingFace": {"repo": "b"}}},
            id="two sources",
        ),
        pytest.param(
            "stage", {"version": "1", "source": {"path": "/a"}, "digest": "md5:1"}, id="a digest"
        ),
        pytest.param("fence", {"reason": ""}, id="no reason"),
        pytest.param("load", {"version": "1", "epoch": {"term": -1, "sequence": 0}}, id="an epoch"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_and_nothing_happens(
    admin: Admin, call: str, body: dict[str, Any]
) -> None:
    reply = await admin.put(call, **body)

    assert reply.status_code == 400
    assert reply.json()["error"]["reason"] == "BadRequest"
    assert admin.bench.engine.calls == []


async def test_a_bad_body_is_described_without_being_repeated(admin: Admin) -> None:
    reply = await admin.put("load", version="a-secret/in-a-field")

    assert "version" in reply.json()["error"]["message"]
    assert "a-secret" not in reply.text


async def test_keys_of_a_newer_protocol_are_ignored(admin: Admin) -> None:
    reply = await admin.put("pause", mode="keep", lease_seconds=30, from_the_future=1)

    assert reply.status_code == 200


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic right", "Bearer", "right"])
async def test_nothing_but_the_probes_is_open(admin: Admin, header: str | None) -> None:
    headers = {"Authorization": header} if header is not None else {}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(admin.app), base_url="http://worker", headers=headers
    ) as stranger:
        replies = [
            await stranger.get("/v1/worker/state"),
            await stranger.put("/v1/worker/fence", json={"epoch": EPOCH, "reason": "x"}),
            await stranger.post("/v1/worker/drain"),
            await stranger.get("/nothing"),
        ]
        probes = [await stranger.get("/livez"), await stranger.get("/readyz")]

    assert {reply.status_code for reply in replies} == {401}
    assert all(reply.json()["state"] is None for reply in replies)
    assert [probe.status_code for probe in probes] == [200, 200]
    assert admin.drained == 0
    assert admin.bench.agent.is_open


async def test_readiness_follows_the_latch_and_names_the_phase(admin: Admin) -> None:
    async def ready() -> tuple[int, str]:
        reply = await admin.client.get("/readyz")
        return reply.status_code, reply.text.strip()

    assert await ready() == (200, "serving")
    await admin.bench.pause()
    assert await ready() == (200, "paused")
    await admin.bench.fence()
    assert await ready() == (503, "joining")


async def test_liveness_follows_the_engine(admin: Admin) -> None:
    assert (await admin.client.get("/livez")).status_code == 200
    admin.problem = "the engine has not answered for 99 s"
    reply = await admin.client.get("/livez")

    assert (reply.status_code, reply.text) == (503, "the engine has not answered for 99 s\n")


async def test_wrong_methods_and_paths_are_told_apart(admin: Admin) -> None:
    wrong_method = await admin.client.post("/v1/worker/pause")
    wrong_path = await admin.client.get("/v1/worker/nothing")

    assert (wrong_method.status_code, wrong_path.status_code) == (405, 404)
    assert "PUT /v1/worker/pause" in wrong_method.json()["error"]["message"]


async def test_a_call_goes_on_when_its_caller_goes_away(admin: Admin) -> None:
    import asyncio  # noqa: PLC0415 - of this test only

    gate = admin.bench.engine.gates["pause keep"] = asyncio.Event()
    call = asyncio.create_task(admin.put("pause", mode="keep", lease_seconds=30))
    await soon(lambda: "pause keep" in admin.bench.engine.calls)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    gate.set()
    await soon(lambda: admin.bench.agent.lease is not None)


async def test_a_failure_after_its_caller_went_away_is_not_left_lying_about(
    admin: Admin,
) -> None:
    import asyncio  # noqa: PLC0415 - of this test only
    import gc  # noqa: PLC0415 - of this test only

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    gate = admin.bench.engine.gates["pause keep"] = asyncio.Event()
    admin.bench.engine.failures["pause keep"] = [EngineFailure("late", touched=False)]
    call = asyncio.create_task(admin.put("pause", mode="keep", lease_seconds=30))
    await soon(lambda: "pause keep" in admin.bench.engine.calls)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    gate.set()
    await soon(lambda: "resume" in admin.bench.engine.calls)
    gc.collect()
    await asyncio.sleep(0)

    assert problems == []
