"""Demands, and which weights made the tokens of a reply."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ConfigDict

from fleet_worker import protocol
from fleet_worker.audit.records import read_records
from fleet_worker.provenance.demands import IN_BODY
from rlfleet import IncompleteReply, Label, Sampling, labels_of, record, weight_versions

SPANS = [
    {"version": "42", "start": 0, "end": 1, "run_id": "r", "digest": "0123456789ab"},
    {"version": "43", "start": 1, "end": 2, "adapter": "7", "kv_from": "42"},
]
CHAT: dict[str, Any] = {
    "id": "chat-1",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "index": 0,
            "token_ids": [7, 8],
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"logprob": -0.25}]},
            "weight_versions": SPANS,
        }
    ],
}


class Part(BaseModel):
    """As the openai client's models: unknown fields are kept."""

    model_config = ConfigDict(extra="allow")


class Choice(Part):
    index: int


class Reply(Part):
    id: str
    choices: list[Choice]


def test_demands_are_the_headers_of_the_worker():
    assert Sampling(exact="43", minimum="42", run_id="run-8").headers() == {
        protocol.HEADER_VERSION_EXACT: "43",
        protocol.HEADER_VERSION_MIN: "42",
        protocol.HEADER_RUN: "run-8",
    }
    assert Sampling().headers() == {}


def test_demands_are_the_fields_of_the_body_that_the_worker_reads():
    demand = Sampling(exact="43", minimum="42", run_id="run-8")

    assert demand.body() == {IN_BODY.exact: "43", IN_BODY.minimum: "42", IN_BODY.run: "run-8"}
    assert Sampling().body() == {}


@pytest.mark.parametrize(
    "reply",
    [CHAT, Reply.model_validate(CHAT), httpx.Response(200, json=CHAT)],
    ids=["dict", "models", "response"],
)
def test_spans_are_read_from_replies_of_any_client(reply):
    found = weight_versions(reply)

    assert [span.model_dump(exclude_none=True) for span in found] == SPANS


def test_a_choice_is_found_by_its_index():
    chunk = {"choices": [{"index": 1, "weight_versions": SPANS[:1]}]}

    assert weight_versions(chunk, 1)[0].version == "42"
    with pytest.raises(IncompleteReply, match="no choice 0"):
        weight_versions(chunk)


@pytest.mark.parametrize(
    "reply", [{"weight_versions": SPANS}, {"type": "x", "response": {"weight_versions": SPANS}}]
)
def test_replies_without_choices_have_one_list(reply):
    assert len(weight_versions(reply)) == 2


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"choices": [{"index": 0}]}, "no weight_versions"),
        ({}, "no weight_versions"),
        ({"weight_versions": [{"version": "43"}]}, "cannot be read"),
        (None, "NoneType is not a reply"),
        (httpx.Response(200, json=[]), "Response is not a reply"),
    ],
)
def test_a_reply_without_weight_versions_is_an_error(reply, words):
    with pytest.raises(IncompleteReply, match=words):
        weight_versions(reply)


def test_headers_name_the_first_and_last_weights():
    headers = httpx.Headers(
        {
            protocol.HEADER_VERSION_START: "42",
            protocol.HEADER_RUN_START: "r",
            protocol.HEADER_DIGEST_START: "0123456789ab",
            protocol.HEADER_VERSION_END: "43",
        }
    )

    assert labels_of(headers) == (Label("42", "r", "0123456789ab"), Label("43"))
    assert labels_of({"X-Weight-Version-Start": "42"}) == (Label("42"), None)
    assert labels_of({"content-type": "text/html"}) is None


# --- records --------------------------------------------------------------------------------------

COMPLETION = {
    "id": "c",
    "choices": [
        {
            "index": i,
            "prompt_token_ids": [1],
            "token_ids": [7],
            "logprobs": {"token_logprobs": [-1.5]},
            "weight_versions": SPANS[:1],
        }
        for i in range(2)
    ],
}


@pytest.mark.parametrize("reply", [CHAT, COMPLETION, Reply.model_validate(CHAT)])
def test_a_record_is_what_the_audit_reads(reply, tmp_path):
    body = reply if isinstance(reply, dict) else reply.model_dump()
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in record(reply)))

    found = list(read_records(file.read_text().splitlines()))

    assert len(found) == len(body["choices"])
    for one, choice in zip(found, body["choices"], strict=True):
        assert list(one.token_ids) == choice["token_ids"]
        assert [s.version for s in one.weight_versions] == [
            s["version"] for s in choice["weight_versions"]
        ]
        assert one.id == f"{body['id']}/{choice['index']}"


def test_a_prompt_that_is_not_in_the_reply_is_a_parameter():
    reply = {k: v for k, v in CHAT.items() if k != "prompt_token_ids"}

    assert record(reply, prompt_token_ids=[5], reply_id="x")[0]["prompt_token_ids"] == [5]
    with pytest.raises(IncompleteReply, match="prompt_token_ids="):
        record(reply)


def test_a_choice_without_tokens_is_a_record():
    reply = copy.deepcopy(CHAT)
    reply["choices"][0] |= {"token_ids": [], "logprobs": {"content": []}, "weight_versions": []}

    assert record(reply)[0]["weight_versions"] == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": None}, "return_token_ids"),
        ({"logprobs": None}, "send logprobs"),
        ({"logprobs": {"content": [{"logprob": -1.0}]}}, "one log-probability for each token"),
        ({"logprobs": {"token_logprobs": [None, -1.0]}}, "one log-probability for each token"),
        ({"weight_versions": SPANS[:1]}, "weight_versions over all tokens"),
        ({"weight_versions": SPANS[1:]}, "weight_versions over all tokens"),
        ({"weight_versions": [SPANS[1], SPANS[0]]}, "weight_versions over all tokens"),
    ],
)
def test_a_reply_that_cannot_be_audited_names_the_missing_parameters(change, words):
    reply = copy.deepcopy(CHAT)
    reply["choices"][0] |= change

    with pytest.raises(IncompleteReply, match=f"choice chat-1/0 lacks .*{words}"):
        record(reply)
