"""The admin port over HTTP, with a fake engine behind it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.admin_ports import OperatorPort
from tests.support.fake_engine import touched
from tests.support.tiny import write_tiny
from tests.support.waiting import soon

from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import ErrorReply, Reason, WorkerState


async def test_every_call_answers_with_the_whole_state(admin: OperatorPort) -> None:
    path = str(write_tiny(admin.harness.root / "1"))
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


async def test_a_refusal_answers_with_reason_message_and_state(admin: OperatorPort) -> None:
    reply = await admin.put("resume", version="7")
    body = ErrorReply.model_validate_json(reply.content)

    assert reply.status_code == 409
    assert body.error.reason is Reason.VERSION_MISMATCH
    assert body.state is not None
    assert body.state.version == "base"
    assert admin.refused == [Reason.VERSION_MISMATCH]


async def test_a_failure_of_the_engine_answers_5xx(admin: OperatorPort) -> None:
    await admin.put(
        "stage", version="1", source={"path": str(write_tiny(admin.harness.root / "1"))}
    )
    await admin.put("pause", mode="keep", lease_seconds=30)
    admin.harness.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    reply = await admin.put("load", version="1")

    assert reply.status_code == 500
    assert reply.json()["error"]["reason"] == "ProbeFailed"
    assert reply.json()["state"]["phase"] == "joining"


async def test_a_bug_in_the_worker_answers_500_and_is_logged(
    admin: OperatorPort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise KeyError("a-secret")

    monkeypatch.setattr(admin, "drained", None)
    monkeypatch.setattr(admin.harness.engine, "resume", fail)
    await admin.put("pause", mode="keep", lease_seconds=30)
    reply = await admin.put("resume", version="base")

    assert (reply.status_code, reply.json()["error"]["reason"]) == (500, "EngineFailed")
    assert "a-secret" not in reply.text
    assert "PUT /v1/worker/resume failed" in caplog.text
    assert reply.json()["state"]["phase"] == "paused"


async def test_a_worker_that_another_caller_holds_answers_with_retry_after(
    admin: OperatorPort,
) -> None:
    await admin.put("pause", mode="keep", lease_seconds=30, holder="trainer")
    error = (await admin.put("pause", mode="keep", lease_seconds=30)).json()["error"]

    assert error["reason"] == "HeldByAnother"
    assert error["retry_after_seconds"] == 30


async def test_a_source_in_the_hub_is_written_in_camel_case(admin: OperatorPort) -> None:
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
async def test_a_malformed_body_is_refused_without_an_effect(
    admin: OperatorPort, call: str, body: dict[str, Any]
) -> None:
    reply = await admin.put(call, **body)

    assert reply.status_code == 400
    assert reply.json()["error"]["reason"] == "BadRequest"
    assert admin.harness.engine.calls == []


async def test_an_error_about_a_body_does_not_repeat_it(admin: OperatorPort) -> None:
    reply = await admin.put("load", version="a-secret/in-a-field")

    assert "version" in reply.json()["error"]["message"]
    assert "a-secret" not in reply.text


async def test_unknown_keys_of_a_newer_protocol_are_ignored(admin: OperatorPort) -> None:
    reply = await admin.put("pause", mode="keep", lease_seconds=30, from_the_future=1)

    assert reply.status_code == 200


async def test_readiness_follows_the_latch_and_names_the_phase(admin: OperatorPort) -> None:
    async def ready() -> tuple[int, str]:
        reply = await admin.client.get("/readyz")
        return reply.status_code, reply.text.strip()

    assert await ready() == (200, "serving")
    await admin.harness.pause()
    assert await ready() == (200, "paused")
    await admin.harness.fence()
    assert await ready() == (503, "joining")


async def test_a_worker_is_not_ready_before_clients_can_connect(admin: OperatorPort) -> None:
    """The operator may open the latch before vLLM's server takes connections."""
    admin.listens = False
    assert (await admin.client.get("/readyz")).status_code == 503
    assert (await admin.client.get("/livez")).status_code == 200
    admin.listens = True

    assert (await admin.client.get("/readyz")).status_code == 200


async def test_liveness_follows_the_engine(admin: OperatorPort) -> None:
    assert (await admin.client.get("/livez")).status_code == 200
    admin.problem = "the engine has not answered for 99 s"
    reply = await admin.client.get("/livez")

    assert (reply.status_code, reply.text) == (503, "the engine has not answered for 99 s\n")


async def test_a_call_finishes_when_its_caller_disconnects(admin: OperatorPort) -> None:
    import asyncio  # noqa: PLC0415 - of this test only

    gate = admin.harness.engine.gates["pause keep"] = asyncio.Event()
    call = asyncio.create_task(admin.put("pause", mode="keep", lease_seconds=30))
    await soon(lambda: "pause keep" in admin.harness.engine.calls)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    gate.set()
    await soon(lambda: admin.harness.agent.lease is not None)


async def test_a_failure_after_the_caller_disconnected_is_not_an_unretrieved_exception(
    admin: OperatorPort,
) -> None:
    import asyncio  # noqa: PLC0415 - of this test only
    import gc  # noqa: PLC0415 - of this test only

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    gate = admin.harness.engine.gates["pause keep"] = asyncio.Event()
    admin.harness.engine.failures["pause keep"] = [EngineFailure("late", touched=False)]
    call = asyncio.create_task(admin.put("pause", mode="keep", lease_seconds=30))
    await soon(lambda: "pause keep" in admin.harness.engine.calls)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    gate.set()
    await soon(lambda: "resume" in admin.harness.engine.calls)
    gc.collect()
    await asyncio.sleep(0)

    assert problems == []
