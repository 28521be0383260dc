"""Routes of the public port."""

from __future__ import annotations

import pytest

from fleet_worker.gateway.routes import Access, access_of


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/livez", Access.PROBE),
        ("/readyz", Access.PROBE),
        ("/health", Access.OPEN),
        ("/metrics", Access.OPEN),
        ("/v1/models", Access.OPEN),
        ("/tokenize", Access.OPEN),
        ("/v1/completions", Access.DATA),
        ("/v1/chat/completions", Access.DATA),
        ("/inference/v1/generate", Access.DATA),
        ("/v1/responses", Access.DATA),
        ("/pause", Access.ABSENT),
        ("/collective_rpc", Access.ABSENT),
        ("/v1/load_lora_adapter", Access.ABSENT),
        ("/v1/worker/state", Access.ABSENT),
        ("/scale_elastic_ep", Access.ABSENT),
        ("/", Access.ABSENT),
        ("", Access.ABSENT),
    ],
)
def test_each_path_has_its_access(path: str, access: Access) -> None:
    assert access_of(path) is access


@pytest.mark.parametrize(
    "path", ["/V1/completions", "/v1/completions/", "//v1/completions", "/v1/./completions"]
)
def test_another_spelling_is_an_unknown_path(path: str) -> None:
    assert access_of(path) is Access.ABSENT
