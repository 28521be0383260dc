"""Replies held against an OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]


def operation(document: Json, method: str, path: str) -> Json | None:
    """The operation of a request; None if the document has none."""
    path = re.sub(r"^/t/[^/]+(?=/fleets/)", "", path)  # the second of its servers
    for template, operations in document["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), path):
            found: Json | None = operations.get(method.lower())
            return found
    return None


def check(document: Json, request: tuple[str, str], status: int, media: str, body: Any) -> None:
    """Errors: AssertionError for a reply that the operation of the request does not declare."""
    described = operation(document, *request)
    if described is None:
        assert status >= 400, f"{request} answers {status}, and is not in the document"
        return
    if str(status) not in described["responses"] and "default" in described["responses"]:
        return
    assert str(status) in described["responses"], f"{request} answers {status}, not declared"
    content = described["responses"][str(status)]["content"]
    assert media in content, f"{request} answers {status} as {media}, not declared"
    if media.endswith("json"):
        schema = content[media]["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(body)
