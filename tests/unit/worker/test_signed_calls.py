"""Signed calls: for one pod and one process, as they were signed, and once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import Bench
from tests.unit.worker.test_admin_app import Admin

from fleet_worker.core.addressing import MAX_SESSIONS, Taken
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import (
    FENCE_PATH,
    HEADER_BODY_DIGEST,
    HEADER_INSTANCE,
    HEADER_NONCE,
    HEADER_POD_UID,
    HEADER_SIGNATURE,
    PAUSE_PATH,
    SIGNATURE_SCHEME,
    STATE_PATH,
    Phase,
    Reason,
    SignedCall,
    answer_signature,
    body_digest,
    call_signature,
)
from fleet_worker.wire.admin.app import AdminApp
from fleet_worker.wire.admin.bearer import BearerFile
from fleet_worker.wire.admin.guard import Guard

SESSION = "0123456789abcdef"
EPOCH = {"term": 1, "sequence": 1}
PAUSE = {"mode": "keep", "lease_seconds": 30, "epoch": EPOCH}


@dataclass(frozen=True)
class Signer:
    """Sends signed calls.

    Fields:
        sent: what goes over the wire instead of what was signed.
    """

    client: httpx.AsyncClient
    token: str = "right"
    pod_uid: str = "uid-0"
    instance: str = "i"
    method: str = "PUT"
    path: str = PAUSE_PATH
    body: bytes = json.dumps(PAUSE).encode()

    async def call(self, number: int | str = 1, **sent: Any) -> httpx.Response:
        nonce = f"{SESSION}-{number}" if isinstance(number, int) else number
        signed = SignedCall(
            method=self.method,
            path=self.path,
            pod_uid=self.pod_uid,
            instance=self.instance,
            nonce=nonce,
            body_digest=body_digest(self.body),
        )
        signature = call_signature(self.token, signed)
        headers = {
            "Authorization": f"{SIGNATURE_SCHEME} {signature}",
            HEADER_POD_UID: self.pod_uid,
            HEADER_INSTANCE: self.instance,
            HEADER_NONCE: nonce,
            HEADER_BODY_DIGEST: signed.body_digest,
        } | sent.pop("headers", {})
        reply = await self.client.request(
            sent.get("method", self.method),
            sent.get("path", self.path),
            content=sent.get("body", self.body),
            headers=headers,
        )
        proven = answer_signature(
            self.token, call=signature, status=reply.status_code, body=reply.content
        )
        assert reply.headers.get(HEADER_SIGNATURE) == (
            None
            if reply.json().get("error", {}).get("message", "").startswith("no token")
            else proven
        )
        return reply


@pytest.fixture
async def admin(serving: Bench, tmp_path: Path) -> AsyncIterator[Admin]:
    token_file = tmp_path / "token"
    token_file.write_text("right\n")
    made = Admin(serving, token_file)
    yield made
    await made.client.aclose()


@pytest.fixture
def signer(admin: Admin) -> Signer:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(admin.app), base_url="http://worker")
    return Signer(client)


def reason(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["reason"])


async def test_a_signed_call_is_obeyed_and_its_answer_signed(admin: Admin, signer: Signer) -> None:
    reply = await signer.call()

    assert reply.status_code == 200
    assert reply.json()["pod_uid"] == "uid-0"
    assert admin.bench.state.phase is Phase.PAUSED


async def test_a_call_for_another_pod_is_refused_and_changes_nothing(
    admin: Admin, signer: Signer
) -> None:
    """Addresses are used again: within a fleet the token fits."""
    before = admin.bench.state
    body = json.dumps(PAUSE | {"epoch": {"term": 9, "sequence": 9}}).encode()
    reply = await replace(signer, pod_uid="uid-7", body=body).call()

    assert (reply.status_code, reason(reply)) == (421, "WrongPod")
    assert admin.bench.state == before
    assert admin.refused == [Reason.WRONG_POD]


async def test_a_question_for_another_pod_is_refused(signer: Signer) -> None:
    question = replace(signer, method="GET", path=STATE_PATH, body=b"", pod_uid="uid-7")

    assert reason(await question.call()) == "WrongPod"


async def test_a_signed_call_that_names_no_pod_is_refused(signer: Signer) -> None:
    assert reason(await replace(signer, pod_uid="").call()) == "WrongPod"


async def test_a_call_for_another_pod_is_refused_with_a_token_too(admin: Admin) -> None:
    headers = {HEADER_POD_UID: "uid-7"}
    reply = await admin.client.put(PAUSE_PATH, json=PAUSE, headers=headers)

    assert (reply.status_code, reason(reply)) == (421, "WrongPod")
    assert admin.bench.state.phase is Phase.SERVING


async def test_a_call_with_a_token_that_names_no_pod_is_obeyed_unsigned(admin: Admin) -> None:
    reply = await admin.client.put(PAUSE_PATH, json=PAUSE)

    assert reply.status_code == 200
    assert HEADER_SIGNATURE not in reply.headers


@pytest.mark.parametrize("named", [True, False])
async def test_a_worker_that_does_not_know_its_pod_takes_calls_that_name_none(
    serving: Bench, tmp_path: Path, *, named: bool
) -> None:
    (tmp_path / "token").write_text("right")
    admin = Admin(serving, tmp_path / "token")
    guard = Guard(BearerFile(tmp_path / "token"), pod_uid=None, instance="i")
    app = AdminApp(
        [admin.app._default], guard=guard, probes=admin.app._probes, on_refused=admin.refused.append
    )
    headers = {"Authorization": "Bearer right"} | ({HEADER_POD_UID: "uid-0"} if named else {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://w") as client:
        reply = await client.put(PAUSE_PATH, json=PAUSE, headers=headers)

    assert reply.status_code == (421 if named else 200)
    assert (serving.state.phase is Phase.PAUSED) == (not named)


async def test_a_call_is_taken_once(admin: Admin, signer: Signer) -> None:
    await signer.call(7)
    repeated = await signer.call(7)
    older = await signer.call(6)

    assert [reason(repeated), reason(older)] == ["StaleCall", "StaleCall"]
    assert (repeated.status_code, older.status_code) == (409, 409)
    assert (await signer.call(8)).status_code == 200


async def test_a_pause_that_was_recorded_stops_no_worker_later(
    admin: Admin, signer: Signer
) -> None:
    """Within one epoch: nothing but the nonce tells the repetition from a wish."""
    body = json.dumps({"version": "base", "epoch": EPOCH}).encode()
    await signer.call(1)
    await replace(signer, path="/v1/worker/resume", body=body).call(2)
    await signer.call(1)

    assert admin.bench.state.phase is Phase.SERVING


async def test_a_call_for_an_earlier_process_of_the_pod_is_refused(
    admin: Admin, signer: Signer
) -> None:
    reply = await replace(signer, instance="before").call()

    assert (reply.status_code, reason(reply)) == (409, "StaleCall")
    assert admin.bench.state.phase is Phase.SERVING


async def test_questions_are_answered_as_often_as_they_come(signer: Signer) -> None:
    question = replace(signer, method="GET", path=STATE_PATH, body=b"", instance="")

    assert [(await question.call(3)).status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({"path": FENCE_PATH}, id="another path"),
        pytest.param({"path": f"{PAUSE_PATH}?a=b"}, id="a query"),
        pytest.param({"method": "POST"}, id="another method"),
        pytest.param({"headers": {HEADER_INSTANCE: "other"}}, id="another process"),
        pytest.param({"headers": {HEADER_POD_UID: "uid-7"}}, id="another pod"),
        pytest.param({"headers": {HEADER_NONCE: f"{SESSION}-9"}}, id="another number"),
        pytest.param({"headers": {HEADER_BODY_DIGEST: "0" * 64}}, id="another digest"),
        pytest.param({"headers": {"Authorization": SIGNATURE_SCHEME}}, id="no signature"),
        pytest.param({"headers": {"Authorization": f"{SIGNATURE_SCHEME} right"}}, id="the token"),
    ],
)
async def test_what_was_not_signed_is_refused(
    admin: Admin, signer: Signer, sent: dict[str, Any]
) -> None:
    reply = await signer.call(1, **sent)

    assert (reply.status_code, reason(reply)) == (401, "Unauthorized")
    assert admin.bench.state.phase is Phase.SERVING
    assert (await signer.call(1)).status_code == 200  # the number was not used up


async def test_another_body_than_the_signed_one_is_refused(admin: Admin, signer: Signer) -> None:
    body = json.dumps(PAUSE | {"mode": "abort"}).encode()
    reply = await signer.call(1, body=body)

    assert (reply.status_code, reason(reply)) == (401, "Unauthorized")
    assert admin.bench.state.phase is Phase.SERVING


async def test_another_token_is_refused_unsigned(signer: Signer) -> None:
    reply = await replace(signer, token="wrong").call()

    assert (reply.status_code, reason(reply)) == (401, "Unauthorized")
    assert HEADER_SIGNATURE not in reply.headers


@pytest.mark.parametrize("token", ["new", "right"])
async def test_a_rotation_may_overlap(tmp_path: Path, signer: Signer, token: str) -> None:
    (tmp_path / "token").write_text("new\nright\n")

    assert (await replace(signer, token=token).call()).status_code == 200


@pytest.mark.parametrize("nonce", ["", "1", f"{SESSION}", f"{SESSION}--1", f"{SESSION}-1e3", "x-1"])
async def test_a_nonce_has_its_form(signer: Signer, nonce: str) -> None:
    reply = await signer.call(nonce)

    assert (reply.status_code, reason(reply)) == (400, "BadRequest")


async def test_a_path_that_no_surface_serves_is_answered_with_a_signature(signer: Signer) -> None:
    assert (await replace(signer, path="/v1/worker/nothing").call()).status_code == 404


def test_the_numbers_of_few_sessions_are_remembered() -> None:
    taken = Taken("i")
    for session in range(MAX_SESSIONS + 1):
        taken.take("i", str(session), 5)
    with pytest.raises(Refusal):
        taken.take("i", str(MAX_SESSIONS), 5)

    assert len(taken._numbers) == MAX_SESSIONS


async def test_a_signed_stage_is_as_one_with_a_token(admin: Admin, signer: Signer) -> None:
    path = str(write_tiny(admin.bench.root / "1"))
    body = json.dumps({"version": "1", "source": {"path": path}, "epoch": EPOCH}).encode()
    reply = await replace(signer, path="/v1/worker/stage", body=body).call()

    assert reply.json()["staged"]["version"] == "1"
