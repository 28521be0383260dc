"""The OpenAPI document, made from the table of routes and the models: pure.

Source: OpenAPI 3.1, whose schemas are JSON Schema 2020-12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Literal

from pydantic import TypeAdapter

from fleet_api.calls import PATH_KEY, PREFIX
from fleet_api.problems import MEDIA_TYPE
from fleet_api.replies import ProblemDocument
from fleet_api.route import EVENT_STREAM, JSON, Route

COMMON_ERRORS = frozenset({401, 403, 404, 429, 500, 502, 503})
"""Statuses of problems that every route of a fleet may answer with."""
PROXIED = "proxied"
"""Tag of operations that workers answer."""
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_MODE: Literal["validation"] = "validation"
_Keyed = tuple[str, Literal["validation", "serialization"], TypeAdapter[Any]]


def document(routes: Iterable[Route], release: str) -> dict[str, Any]:
    """The document of all routes, with those at the root. `release`: of the RL API."""
    table = tuple(routes)
    schemas, shared = TypeAdapter.json_schemas(
        _adapters(table), ref_template="#/components/schemas/{model}"
    )
    named = {str(key): schema for (key, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {**_root(named["problem"])}
    for route in table:
        operations = paths.setdefault(PREFIX + route.path, {"parameters": _in_path(route.path)})
        operations[route.method.lower()] = _operation(route, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "RL API of rlfleet",
            "version": release,
            "description": "State, discovery and weights of fleets, for trainers.",
        },
        "servers": [
            {"url": "/"},
            {
                "url": PATH_KEY,
                "description": "With a static key of the fleet, for clients that send no headers.",
                "variables": {"key": {"default": "KEY"}},
            },
        ],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the cluster, or a static key of the fleet.",
                }
            },
        },
    }


def _adapters(table: tuple[Route, ...]) -> list[_Keyed]:
    found: list[_Keyed] = [("problem", _MODE, TypeAdapter(ProblemDocument))]
    for route in table:
        contract, key = route.contract, f"{route.method} {route.path}"
        found += [
            (f"{key} {status}", _MODE, TypeAdapter(reply))
            for status, reply in contract.replies.items()
        ]
        if contract.body is not None:
            found.append((f"{key} body", _MODE, TypeAdapter(contract.body)))
    return found


def _operation(route: Route, named: dict[str, Any]) -> dict[str, Any]:
    contract, key = route.contract, f"{route.method} {route.path}"
    responses: dict[str, Any] = {
        str(status): _response(status, {contract.media: named[f"{key} {status}"]})
        for status in sorted(contract.replies)
    }
    for status in sorted(COMMON_ERRORS | contract.errors):
        media = {MEDIA_TYPE: named["problem"]}
        if str(status) in responses:
            media |= {contract.media: named[f"{key} {status}"]}
        responses[str(status)] = _response(status, media)
    operation: dict[str, Any] = {
        "operationId": _slug(f"{route.method.lower()} {route.path}"),
        "summary": route.title,
        "description": f"Needs get on the fleet, and {route.access}.",
        "responses": responses,
    }
    if contract.is_open:
        responses["default"] = {"description": "As the worker answers."}
    if route.is_proxied:
        operation["tags"] = [PROXIED]
    if parameters := _optional("header", contract.headers) + _optional("query", contract.query):
        operation["parameters"] = parameters
    if contract.body is not None:
        operation["requestBody"] = {"content": {JSON: {"schema": named[f"{key} body"]}}}
    return operation


def _response(status: int, media: dict[str, Any]) -> dict[str, Any]:
    # A schema of a stream would be one of its events, and generators read it differently.
    content = {
        name: {} if name == EVENT_STREAM else {"schema": schema} for name, schema in media.items()
    }
    return {"description": HTTPStatus(status).phrase, "content": content}


def _optional(where: str, named: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": where, "description": text, "schema": {"type": "string"}}
        for name, text in named.items()
    ]


def _in_path(path: str) -> list[dict[str, Any]]:
    rows = [("namespace", "Namespace of the fleet."), ("name", "Name of the fleet.")]
    if "{pod}" in path:
        rows.append(("pod", "Pod of the worker."))
    return [
        {"name": name, "in": "path", "required": True, "schema": _NAME, "description": text}
        for name, text in rows
    ]


def _root(problem: dict[str, Any]) -> dict[str, Any]:
    """The paths that need no token."""
    text: dict[str, Any] = {"text/plain": {"type": "string"}}
    shown, busy = {JSON: {"type": "object"}}, {MEDIA_TYPE: problem}
    rows = {
        "/livez": ("Whether the process runs.", {200: text}),
        "/readyz": ("Whether this replica takes requests.", {200: text, 503: text}),
        "/openapi.json": ("This document.", {200: shown, 429: busy, 503: busy}),
    }
    return {
        path: {
            "get": {
                "operationId": _slug(f"get {path}"),
                "summary": title,
                "security": [],
                "responses": {str(s): _response(s, media) for s, media in replies.items()},
            }
        }
        for path, (title, replies) in rows.items()
    }


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
