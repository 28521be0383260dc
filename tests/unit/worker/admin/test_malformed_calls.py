"""Malformed calls to the admin port: each dialect answers in its own format, without an effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.admin_ports import TrainerPort
from tests.support.raw_call import RawCall
from tests.support.worker_harness import TrainerHarness, WorkerHarness

from fleet_worker.admin.api import Answer, Api, Call, explain_to_trainer
from fleet_worker.admin.app import AdminApp
from fleet_worker.errors import EngineFailure, Refusal, status_of
from fleet_worker.protocol import Phase, Reason
from fleet_worker.trainer.dynamo import Dynamo
from fleet_worker.trainer.prime_rl import PrimeRl
from fleet_worker.trainer.vllm import Vllm

# --- clients that go away -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/abort_requests", id="all of them would be aborted"),
        pytest.param("/pause", id="vLLM's pause aborts by default"),
        pytest.param("/engine/pause_generation", id="Dynamo's pause"),
        pytest.param("/sleep", id="sleep"),
        pytest.param("/v1/worker/drain", id="the end of the process"),
    ],
)
async def test_a_call_whose_client_disconnects_before_its_body_ends_has_no_effect(
    trainer_port: TrainerPort, path: str
) -> None:
    for begun in ([], [b""], [b"  "], [b'{"request_ids":'], [b"{}", b""]):
        call = await RawCall("POST", path, [*begun, None]).to(trainer_port.app)

        assert call.sent == [], "the client has disconnected"
        assert trainer_port.harness.engine.calls == []
        assert trainer_port.harness.state.phase is Phase.SERVING
        assert trainer_port.refused == []


# --- more than a route takes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"), [("/pause", 413), ("/load_lora_adapter", 413), ("/resume", 413)]
)
async def test_a_body_over_the_limit_is_refused_in_one_piece_or_several(
    trainer_port: TrainerPort, path: str, status: int
) -> None:
    whole = await RawCall("POST", path, [b" " * 70_000]).to(trainer_port.app)
    pieces = await RawCall("POST", path, [b" " * 1000] * 70).to(trainer_port.app)

    assert (whole.status, pieces.status) == (status, status)
    assert pieces.read == 70, "it is read to its end, so that the answer arrives"
    assert "65536" in json.dumps(whole.body)
    assert trainer_port.harness.engine.calls == []


async def test_a_body_of_exactly_the_limit_is_accepted(trainer_port: TrainerPort) -> None:
    call = await RawCall("POST", "/is_paused", [b" " * 65_536]).to(trainer_port.app)
    assert call.status == 405
    call = await RawCall("POST", "/abort_requests", [b"{}" + b" " * 65_534]).to(trainer_port.app)
    assert call.status == 200
    call = await RawCall("POST", "/abort_requests", [b"{}" + b" " * 65_535]).to(trainer_port.app)
    assert call.status == 413


@pytest.mark.parametrize("letter", ["x", "я", "\N{GRINNING FACE}", "\x01"])
async def test_the_longest_canary_prompts_of_a_fleet_are_accepted(
    trainer_port: TrainerPort, letter: str
) -> None:
    """32 prompts of 4,000 letters each: what the resource takes, the operator has to be able to ask."""
    epoch = trainer_port.harness.epoch().model_dump()
    body = {"prompts": [letter * 4000] * 32, "max_tokens": 256}
    body |= {"compare_with": "base", "epoch": epoch}
    call = await RawCall("PUT", "/v1/worker/probe", [json.dumps(body).encode()]).to(
        trainer_port.app
    )

    assert call.status == 200, call.body


async def test_an_endless_body_is_not_read_to_its_end(trainer_port: TrainerPort) -> None:
    call = await RawCall("POST", "/pause", [b" " * 65_536] * 1000).to(trainer_port.app)

    assert call.status == 413
    assert call.read == 17


# --- invalid bodies -----------------------------------------------------------------------------

GARBAGE = [
    pytest.param(b"{", id="half an object"),
    pytest.param(b"[1]", id="a list"),
    pytest.param(b'"text"', id="a text"),
    pytest.param(b"null", id="null"),
    pytest.param(b"\xff\xfe\x00", id="no text at all"),
    pytest.param(b"\xef\xbb\xbf{}", id="a byte order mark"),
    pytest.param(b"[" * 20_000, id="deeply nested"),
    pytest.param(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, id="objects deeply nested"),
    pytest.param(b'{"lora_name": 1e999999}', id="a number beyond all"),
    pytest.param(b'{"request_ids": "a"}', id="a text for a list"),
    pytest.param(b'{"weight_dir": "/a", "update_info": {}}', id="two meanings"),
    pytest.param(b'{"weight_dir": "/a\\u0000b", "model_path": "/a\\u0000b"}', id="a zero"),
    pytest.param(b'{"weight_dir": "\\ud800", "model_path": "\\ud800"}', id="half a letter"),
    pytest.param(('{"weight_dir": "/' + "x" * 5000 + '"}').encode(), id="a path of 5,000 letters"),
    pytest.param(b'{"weight_dir": "", "model_path": ""}', id="an empty path"),
    pytest.param(b'{"weight_dir": "../..", "model_path": "../.."}', id="a relative path"),
    pytest.param(b'{"method": "reload_weights", "args": [1]}', id="positional arguments"),
    pytest.param(
        b'{"method": "reload_weights", "kwargs": {"weights_path": "/a\\u0000b"}}',
        id="a zero by rpc",
    ),
    pytest.param(
        b'{"lora_name": "r", "lora_path": "/a\\u0000b", "source": {"uri": "file:///a%00b"}}',
        id="an adapter's zero",
    ),
    pytest.param(
        b'{"lora_name": "r", "lora_path": "~", "source": {"uri": "file://[::1/a"}}',
        id="half an address",
    ),
    pytest.param(
        b'{"lora_name": "../r", "lora_path": "/", "source": {"uri": "file:///"}}',
        id="a name that is a path",
    ),
]


@pytest.mark.parametrize("body", GARBAGE)
async def test_a_malformed_body_is_a_client_error_on_every_route(
    trainer_port: TrainerPort, body: bytes
) -> None:
    """A client sends a call again after a 5xx, prime-rl ten times; a mistake of the caller is a 4xx."""
    trainer_port.take_adapters()
    for method, path in trainer_port.routes:
        call = await RawCall(method, path + "x" * path.endswith("/"), [body]).to(trainer_port.app)

        assert call.status < 500, f"{method} {path}: {call.sent}"
        assert call.sent[1].get("more_body", False) is False
    assert trainer_port.harness.state.version == "base"
    assert not [c for c in trainer_port.harness.engine.calls if c.startswith("load")]


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("file://[::1/a", id="half an address"),
        pytest.param("file://other-host/weights/a", id="another host"),
        pytest.param("s3://bucket/a", id="another scheme"),
        pytest.param("file:///a%00b", id="a zero"),
        pytest.param("http://localhost/a", id="the web"),
    ],
)
@pytest.mark.parametrize("path", ["/engine/load_lora", "/engine/update/load_lora", "/v1/loras"])
async def test_an_adapter_path_that_cannot_exist_is_an_error_that_dynamos_client_reads(
    trainer_port: TrainerPort, path: str, uri: str
) -> None:
    trainer_port.take_adapters()
    status, reply = await trainer_port.post(path, lora_name="r", source={"uri": uri})

    assert (status, reply["status"]) == (200, "error")
    assert not trainer_port.harness.engine.adapters


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("mode=keep", 200),
        ("mode=abort&mode=keep", 200),
        ("mode=k%65ep", 200),
        ("mode=keep&clear_cache=FALSE", 200),
        ("mode=keep&clear_cache=0", 200),
        ("mode=keep&unknown=%ff", 200),
        ("mode=", 400),
        ("mode", 400),
        ("mode=KEEP", 400),
        ("mode=keep&clear_cache=", 400),
        ("mode=keep&clear_cache=maybe", 400),
        ("mode=%00", 400),
    ],
)
async def test_a_query_is_parsed_as_vllm_parses_it(
    trainer_port: TrainerPort, query: str, status: int
) -> None:
    call = await RawCall("POST", f"/pause?{query}").to(trainer_port.app)

    assert call.status == status, call.body
    assert trainer_port.harness.state.phase is (Phase.PAUSED if status == 200 else Phase.SERVING)
    if status == 200:
        kept = "FALSE" in query or "=0" in query
        assert trainer_port.harness.engine.calls[0] == "pause keep" + " and keep" * kept


# --- callers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"Authorization", b"Bearer right")], 200),
        ([(b"AUTHORIZATION", b"bearer right")], 200),
        ([(b"aUTHORIZATION", b"BEARER   right ")], 200),
        ([(b"x-authorization", b"Bearer right")], 401),
        ([(b"authorization", b"Bearer right, Bearer wrong")], 401),
        ([(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer right")], 401),
        ([(b"authorization", b"Bearer\tright")], 401),
        ([(b"authorization", b"Bearer \xff\xfe")], 401),
        ([(b"authorization", b"Bearer RIGHT")], 401),
        ([(b"authorization", b"")], 401),
        ([], 401),
    ],
)
async def test_the_token_is_read_from_one_header_in_any_case(
    trainer_port: TrainerPort, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    call = await RawCall("GET", "/is_paused", headers=headers).to(trainer_port.app)

    assert call.status == status
    if status == 401:
        assert "right" not in json.dumps(call.body).replace("bearer token", "")


async def test_a_call_without_a_token_cannot_tell_which_paths_exist(
    trainer_port: TrainerPort,
) -> None:
    served = await RawCall("POST", "/pause", [b"x"] * 100, headers=()).to(trainer_port.app)
    absent = await RawCall("POST", "/no/such/path", headers=()).to(trainer_port.app)
    other = await RawCall("GET", "/pause", headers=()).to(trainer_port.app)

    assert served.status == 401
    assert served.read == 0, "it is answered before its body is read"
    assert served.body == absent.body == other.body


async def test_a_caller_without_an_address_may_drive_the_worker(trainer_port: TrainerPort) -> None:
    """Behind a Unix socket there is no address."""
    call = await RawCall("POST", "/pause?mode=keep").to(trainer_port.app)

    assert call.status == 200
    assert trainer_port.harness.agent.lease is not None
    assert trainer_port.harness.agent.lease.holder == "trainer at unknown"


# --- adapters by the operator's routes ----------------------------------------------------------


@pytest.fixture
async def roomy(trainer_port: TrainerPort) -> TrainerPort:
    trainer_port.take_adapters()
    return trainer_port


def put_adapter(trainer_port: TrainerPort, name: str, **body: Any) -> RawCall:
    folder = write_adapter(
        trainer_port.harness.root / "adapter", seed=1, modules=TINY_MODULES, rank=2
    )
    epoch = trainer_port.harness.epoch().model_dump()
    request = {"epoch": epoch, "version": "1", "source": {"path": str(folder)}, **body}
    return RawCall("PUT", f"/v1/worker/adapters/{name}", [json.dumps(request).encode()])


async def test_the_operator_puts_and_removes_an_adapter(roomy: TrainerPort) -> None:
    put = await put_adapter(roomy, "reward").to(roomy.app)
    assert put.status == 200
    assert [(a["name"], a["version"]) for a in put.body["adapters"]] == [("reward", "1")]

    removal = json.dumps({"epoch": roomy.harness.epoch().model_dump()}).encode()
    gone = await RawCall("DELETE", "/v1/worker/adapters/reward", [removal]).to(roomy.app)
    assert gone.status == 200
    assert gone.body["adapters"] == []
    assert roomy.harness.engine.adapters == {}


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("r" * 63, 200, id="63 letters"),
        pytest.param("r" * 64, 400, id="64 letters"),
        pytest.param("a.b_c-d", 200, id="with dots and lines"),
        pytest.param("-r", 400, id="a line first"),
        pytest.param("..", 400, id="the folder above"),
        pytest.param("r\n", 400, id="a line end"),
        pytest.param("r%2Fs", 400, id="a slash written out"),
        pytest.param("r/s", 404, id="a slash"),
        pytest.param("größe", 400, id="letters of other alphabets"),
        pytest.param("", 400, id="no name"),
    ],
)
async def test_an_adapters_name_is_one_path_segment(
    roomy: TrainerPort, name: str, status: int
) -> None:
    call = await put_adapter(roomy, name).to(roomy.app)

    assert call.status == status, call.body
    assert len(roomy.harness.engine.adapters) == (status == 200)


# --- refusals in each client's words ------------------------------------------------------------

OF_THE_ENGINE = {Reason.ENGINE_FAILED, Reason.PROBE_FAILED}
PRIME_TRIES_AGAIN = {Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND, Reason.SOURCE_NOT_READY}
REFUSALS = sorted(set(Reason) - OF_THE_ENGINE)


def explained(api: Api, error: Refusal | EngineFailure) -> tuple[int, Any]:
    answer = api.explain(error, status_of(error.reason))
    assert not isinstance(answer.content, bytes)
    return answer.status, answer.content


@pytest.fixture
def apis(serving: WorkerHarness) -> dict[str, Api]:
    driver = TrainerHarness.of(serving).driver
    vllm = Vllm(driver, bytes)
    made = (vllm, PrimeRl(driver, vllm), Dynamo(driver, vllm))
    return {each.api().name: each.api() for each in made}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_refusal_is_final_and_carries_its_reason_in_every_dialect(
    apis: dict[str, Api], reason: Reason
) -> None:
    error = Refusal(reason, "said in words")
    vllm, prime = explained(apis["vllm"], error), explained(apis["prime_rl"], error)
    dynamo = explained(apis["dynamo"], error)

    assert 400 <= vllm[0] < 500
    assert vllm[1]["error"] == {"message": "said in words", "type": reason, "code": vllm[0]}
    assert prime[0] == (404 if reason in PRIME_TRIES_AGAIN else vllm[0])
    assert (prime[0] == 404) is (reason in PRIME_TRIES_AGAIN), "404 is what its client tries again"
    assert dynamo[0] == (401 if reason is Reason.UNAUTHORIZED else 200)
    assert dynamo[1]["status"] == "error"


@pytest.mark.parametrize("reason", sorted(OF_THE_ENGINE))
@pytest.mark.parametrize("name", ["vllm", "prime_rl", "dynamo"])
def test_a_failure_of_the_engine_may_be_retried_in_every_dialect(
    apis: dict[str, Api], name: str, reason: Reason
) -> None:
    status, content = explained(apis[name], EngineFailure("x", touched=True, reason=reason))

    assert status == 500
    assert content["status"] == "error"


@pytest.mark.parametrize(
    ("seconds", "header"), [(None, None), (0.0, b"0"), (0.2, b"1"), (1.0, b"1"), (29.01, b"30")]
)
def test_retry_after_is_in_whole_seconds_rounded_up(
    seconds: float | None, header: bytes | None
) -> None:
    refusal = Refusal(Reason.HELD_BY_ANOTHER, "held", retry_after_seconds=seconds)
    headers = dict(explain_to_trainer(refusal, 409).headers)

    assert headers.get(b"retry-after") == header


def test_a_message_is_one_line_of_at_most_a_thousand_characters() -> None:
    refusal = Refusal(Reason.BAD_REQUEST, "a\nb\t c" + "x" * 5000)
    content = explain_to_trainer(refusal, 400).content

    assert isinstance(content, dict)
    message = content["error"]["message"]
    assert message.startswith("a b cx")
    assert len(message) == 1000


def test_two_apis_with_the_same_route_fail_at_start(
    apis: dict[str, Api], trainer_port: TrainerPort
) -> None:
    async def nothing(_: Call) -> Answer:
        raise AssertionError

    twice = Api("another", {("POST", "/pause"): nothing}, explain_to_trainer)
    with pytest.raises(ValueError, match="two APIs serve POST /pause"):
        AdminApp(
            [apis["vllm"], twice],
            guard=trainer_port.app._guard,
            probes=trainer_port.app._probes,
            on_refused=lambda _: None,
        )
