"""The example of a signed call on the worker's page is right, digit by digit."""

from __future__ import annotations

import re
from pathlib import Path

from fleet_worker.protocol import (
    HEADER_BODY_DIGEST,
    HEADER_INSTANCE,
    HEADER_NONCE,
    HEADER_POD_UID,
    HEADER_SIGNATURE,
    SIGNATURE_SCHEME,
    SignedCall,
    answer_signature,
    body_digest,
    call_signature,
)

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "worker.md").read_text()


def test_the_example_of_a_signed_call_is_right() -> None:
    found = re.search(r"token `([^`]+)`:\n\n```\n(PUT .*?)```", PAGE, re.DOTALL)
    assert found is not None
    token, (head, body, status, answer) = found[1], found[2].strip().split("\n\n")
    line, *headers = head.splitlines()
    call = dict(header.split(": ", 1) for header in headers)
    method, path = line.split()
    signed = SignedCall(
        method=method,
        path=path,
        pod_uid=call[HEADER_POD_UID],
        instance=call[HEADER_INSTANCE],
        nonce=call[HEADER_NONCE],
        body_digest=body_digest(body.encode()),
    )
    signature = call_signature(token, signed)
    code, proof = status.splitlines()
    proven = answer_signature(token, call=signature, status=int(code), body=answer.encode())

    assert call[HEADER_BODY_DIGEST] == signed.body_digest
    assert call["Authorization"] == f"{SIGNATURE_SCHEME} {signature}"
    assert proof == f"{HEADER_SIGNATURE}: {proven}"
