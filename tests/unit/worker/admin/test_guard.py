"""Signed calls: for one pod and one process, unchanged, and accepted once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.admin_ports import OperatorPort, TrainerPort
from tests.support.refusals import refusal_from
from tests.support.tiny import write_tiny
from tests.support.worker_harness import WorkerHarness

from fleet_worker.admin.addressing import MAX_SESSIONS, Taken
from fleet_worker.admin.app import AdminApp
from fleet_worker.admin.guard import BearerFile, Guard
from fleet_worker.protocol import (
    FENCE_PATH,
    HEADER_BODY_DIGEST,
    HEADER_DRIVER,
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
def signer(admin: OperatorPort) -> Signer:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(admin.app), base_url="http://worker")
    return Signer(client)


def reason(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["reason"])


async def test_a_signed_call_is_carried_out_and_its_answer_is_signed(
    admin: OperatorPort, signer: Signer
) -> None:
    reply = await signer.call()

    assert reply.status_code == 200
    assert reply.json()["pod_uid"] == "uid-0"
    assert admin.harness.state.phase is Phase.PAUSED


async def test_a_call_for_another_pod_is_refused_without_an_effect(
    admin: OperatorPort, signer: Signer
) -> None:
    """Addresses are used again: within a fleet the token fits."""
    before = admin.harness.state
    body = json.dumps(PAUSE | {"epoch": {"term": 9, "sequence": 9}}).encode()
    reply = await replace(signer, pod_uid="uid-7", body=body).call()

    assert (reply.status_code, reason(reply)) == (421, "WrongPod")
    assert admin.harness.state == before
    assert admin.refused == [Reason.WRONG_POD]


async def test_a_get_for_another_pod_or_a_call_for_no_pod_is_refused(signer: Signer) -> None:
    question = replace(signer, method="GET", path=STATE_PATH, body=b"", pod_uid="uid-7")

    for call in (question, replace(signer, pod_uid="")):
        assert reason(await call.call()) == "WrongPod"


async def test_a_call_with_a_token_for_another_pod_is_refused(admin: OperatorPort) -> None:
    headers = {HEADER_POD_UID: "uid-7"}
    reply = await admin.client.put(PAUSE_PATH, json=PAUSE, headers=headers)

    assert (reply.status_code, reason(reply)) == (421, "WrongPod")
    assert admin.harness.state.phase is Phase.SERVING


async def test_a_call_with_a_token_and_no_pod_is_carried_out_and_its_answer_is_unsigned(
    admin: OperatorPort,
) -> None:
    reply = await admin.client.put(PAUSE_PATH, json=PAUSE)

    assert reply.status_code == 200
    assert HEADER_SIGNATURE not in reply.headers


@pytest.mark.parametrize("named", [True, False])
async def test_a_worker_without_a_pod_uid_accepts_calls_that_name_no_pod(
    serving: WorkerHarness, tmp_path: Path, *, named: bool
) -> None:
    (tmp_path / "token").write_text("right")
    admin = OperatorPort(serving, tmp_path / "token")
    guard = Guard(BearerFile(tmp_path / "token"), pod_uid=None, instance="i")
    app = AdminApp(
        [admin.app._default], guard=guard, probes=admin.app._probes, on_refused=admin.refused.append
    )
    headers = {"Authorization": "Bearer right"} | ({HEADER_POD_UID: "uid-0"} if named else {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://w") as client:
        reply = await client.put(PAUSE_PATH, json=PAUSE, headers=headers)

    assert reply.status_code == (421 if named else 200)
    assert (serving.state.phase is Phase.PAUSED) == (not named)


async def test_a_signed_call_is_accepted_once(admin: OperatorPort, signer: Signer) -> None:
    await signer.call(7)
    repeated = await signer.call(7)
    older = await signer.call(6)

    assert [reason(repeated), reason(older)] == ["StaleCall", "StaleCall"]
    assert (repeated.status_code, older.status_code) == (409, 409)
    assert (await signer.call(8)).status_code == 200


async def test_a_replayed_pause_is_refused(admin: OperatorPort, signer: Signer) -> None:
    """Within one epoch: nothing but the nonce tells the repetition from a wish."""
    body = json.dumps({"version": "base", "epoch": EPOCH}).encode()
    await signer.call(1)
    await replace(signer, path="/v1/worker/resume", body=body).call(2)
    await signer.call(1)

    assert admin.harness.state.phase is Phase.SERVING


async def test_a_get_may_be_repeated(signer: Signer) -> None:
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
async def test_a_call_whose_path_or_headers_differ_from_the_signed_ones_is_refused(
    admin: OperatorPort, signer: Signer, sent: dict[str, Any]
) -> None:
    reply = await signer.call(1, **sent)

    assert (reply.status_code, reason(reply)) == (401, "Unauthorized")
    assert admin.harness.state.phase is Phase.SERVING
    assert (await signer.call(1)).status_code == 200  # the number was not used up


async def test_a_call_whose_body_differs_from_the_signed_one_is_refused(
    admin: OperatorPort, signer: Signer
) -> None:
    body = json.dumps(PAUSE | {"mode": "abort"}).encode()
    reply = await signer.call(1, body=body)

    assert (reply.status_code, reason(reply)) == (401, "Unauthorized")
    assert admin.harness.state.phase is Phase.SERVING


@pytest.mark.parametrize("token", ["new", "right"])
async def test_calls_signed_with_the_old_and_the_new_token_are_accepted(
    tmp_path: Path, signer: Signer, token: str
) -> None:
    (tmp_path / "token").write_text("new\nright\n")

    assert (await replace(signer, token=token).call()).status_code == 200


@pytest.mark.parametrize("nonce", ["", "1", f"{SESSION}", f"{SESSION}--1", f"{SESSION}-1e3", "x-1"])
async def test_a_malformed_nonce_is_refused(signer: Signer, nonce: str) -> None:
    reply = await signer.call(nonce)

    assert (reply.status_code, reason(reply)) == (400, "BadRequest")


async def test_an_unknown_path_is_answered_with_a_signature(signer: Signer) -> None:
    assert (await replace(signer, path="/v1/worker/nothing").call()).status_code == 404


def test_the_last_numbers_of_a_bounded_count_of_sessions_are_kept() -> None:
    taken = Taken("i")
    for session in range(MAX_SESSIONS + 1):
        taken.take("i", str(session), 5)
    refusal_from(taken.take, "i", str(MAX_SESSIONS), 5)

    assert len(taken._numbers) == MAX_SESSIONS


async def test_a_signed_stage_has_the_effect_of_one_with_a_token(
    admin: OperatorPort, signer: Signer
) -> None:
    path = str(write_tiny(admin.harness.root / "1"))
    body = json.dumps({"version": "1", "source": {"path": path}, "epoch": EPOCH}).encode()
    reply = await replace(signer, path="/v1/worker/stage", body=body).call()

    assert reply.json()["staged"]["version"] == "1"


# --- the trainer behind a signed call -------------------------------------------------------------


@dataclass(frozen=True)
class Relay(Signer):
    """Signs calls for a trainer, as the RL API does."""

    method: str = "POST"
    path: str = "/pause?mode=keep"
    body: bytes = b""
    driver: str = "trainer-a"

    async def call(self, number: int | str = 1, **sent: Any) -> httpx.Response:
        signed = SignedCall(
            method=self.method,
            path=self.path,
            pod_uid=self.pod_uid,
            instance=self.instance,
            nonce=f"{SESSION}-{number}",
            body_digest=body_digest(self.body),
            driver=self.driver,
        )
        headers = {
            "Authorization": f"{SIGNATURE_SCHEME} {call_signature(self.token, signed)}",
            HEADER_POD_UID: self.pod_uid,
            HEADER_INSTANCE: self.instance,
            HEADER_NONCE: signed.nonce,
            HEADER_BODY_DIGEST: signed.body_digest,
            HEADER_DRIVER: self.driver,
        } | sent
        return await self.client.request(self.method, self.path, headers=headers)


@pytest.fixture
async def relay(trainer_port: TrainerPort) -> AsyncIterator[Relay]:
    transport = httpx.ASGITransport(trainer_port.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        yield Relay(client)


async def test_two_senders_of_one_trainer_are_one_holder(
    relay: Relay, trainer_port: TrainerPort
) -> None:
    assert (await relay.call(1)).status_code == 200
    other = httpx.ASGITransport(trainer_port.app, client=("10.9.9.9", 1))
    async with httpx.AsyncClient(transport=other, base_url="http://worker") as client:
        again = replace(relay, client=client, path="/resume")
        assert (await again.call(2)).status_code == 200


async def test_another_trainer_of_the_same_sender_gets_the_name_of_the_holder(relay: Relay) -> None:
    await relay.call(1)
    refused = await replace(relay, driver="trainer-b").call(2)

    assert refused.status_code == 409
    assert "trainer-a" in refused.json()["error"]["message"]


async def test_the_signature_covers_the_trainers_name(relay: Relay) -> None:
    refused = await relay.call(1, **{HEADER_DRIVER: "trainer-b"})

    assert refused.status_code == 401


@pytest.mark.parametrize("name", ["x" * 254, "a\tb"])
async def test_a_name_that_cannot_hold_a_lease_is_400(relay: Relay, name: str) -> None:
    assert (await replace(relay, driver=name).call(1)).status_code == 400
