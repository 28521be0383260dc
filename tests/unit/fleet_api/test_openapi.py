"""The OpenAPI document equals the code. The fixture `api` holds the replies of all other tests against it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from jsonschema import ValidationError
from tests.support.fake_cluster import READER, TRAINER
from tests.support.openapi import check
from tests.unit.fleet_api.conftest import Api

from fleet_api.calls import PATH_KEY, PREFIX
from fleet_api.control import control_routes
from fleet_api.external import External
from fleet_api.managed import Managed

SOURCES = Path(__file__).parents[3] / "operator/fleet_api"
OF_THE_SERVER = {HTTPStatus.METHOD_NOT_ALLOWED}
"""Statuses of requests that are not an operation."""


def operations(api: Api) -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, item in api.document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }


def statuses_in_the_code() -> set[int]:
    """Each `HTTPStatus.NAME` and `status=…` of the package."""
    found: set[int] = set()
    for file in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="HTTPStatus"), attr=name):
                    found.add(HTTPStatus[name])
                case ast.keyword(arg="status", value=value):
                    numbers = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant)]
                    found |= {n for n in numbers if isinstance(n, int)}
                case _:
                    pass
    return found - OF_THE_SERVER


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


async def test_every_route_has_an_operation_and_every_operation_a_route(api):
    routes = {
        (route.method, route.resource.canonical)
        for route in api.http.app.router.routes()
        if route.resource is not None
        and route.method != "HEAD"
        and not route.resource.canonical.startswith(PATH_KEY)
    }

    assert routes == set(operations(api))
    names = [operation["operationId"] for operation in operations(api).values()]
    assert len(names) == len(set(names))
    assert all(operation["summary"] for operation in operations(api).values())


async def test_every_status_of_the_code_is_declared_and_no_other_one(api):
    declared = {
        int(status)
        for operation in operations(api).values()
        for status in operation["responses"]
        if status != "default"
    }
    # Without a name of its own in the code: a reply that succeeds, and errors of aiohttp.
    implied = {200, 413}

    assert declared == statuses_in_the_code() | implied


async def test_every_operation_of_a_fleet_declares_problems_and_its_rights(api):
    for (method, path), operation in operations(api).items():
        if "{name}" not in path:
            assert operation["security"] == [], path
            continue
        errors = {
            s: r for s, r in operation["responses"].items() if s != "default" and int(s) >= 400
        }
        assert {"401", "403", "404", "429", "500", "502", "503"} <= set(errors), (method, path)
        for response in errors.values():
            schema = response["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ProblemDocument"}
        assert ("requestBody" in operation) <= ({"400", "413", "422"} <= set(errors))
        assert "Needs get on the fleet" in operation["description"]


async def test_each_call_of_the_control_root_says_what_it_does_in_both_kinds_of_fleets(api):
    passed_on = {
        route.path: operations(api)[route.method, PREFIX + route.path]["summary"]
        for route in control_routes(Mock(spec=Managed), Mock(spec=External))
        if route.path not in {"/health", "/get_world_size"}
    }

    assert len(passed_on) > 30
    for path, summary in passed_on.items():
        external, _, managed = summary.partition(" With management Operator: ")
        assert external, path
        assert managed, path
        assert not re.match("no effect|refused", external, re.IGNORECASE), path
    assert passed_on["/pause"].startswith("Every worker pauses")


async def test_every_reference_has_a_schema(api):
    found = set(references(api.document))

    assert found
    assert {re.sub(r"^#/components/schemas/", "", one) for one in found} <= set(
        api.document["components"]["schemas"]
    )


async def test_a_body_has_the_field_names_of_the_resources(api):
    named = api.document["components"]["schemas"]["Publication"]

    assert set(named["properties"]) == {
        *("version", "source", "sameFiles", "digest", "runID", "traceparent"),
        *("wait", "waitForFiles", "timeoutSeconds"),
    }
    assert (named["required"], named["additionalProperties"]) == (["version"], False)


async def test_a_reply_that_is_not_declared_is_seen(api):
    state = "/fleets/rl/policy/v1/rl/state"
    _, body = await api.get("/v1/rl/state", READER)
    check(api.document, ("GET", state), 200, "application/json", body)

    for request, status, media, wrong in (
        (("GET", state), 418, "application/json", body),
        (("GET", state), 200, "text/plain", body),
        (("GET", "/undescribed"), 200, "application/json", body),
    ):
        with pytest.raises(AssertionError):
            check(api.document, request, status, media, wrong)
    with pytest.raises(ValidationError):
        check(api.document, ("GET", state), 200, "application/json", body | {"replicas": "two"})


async def test_the_document_is_open_and_json(api):
    status, document = await api.get("//openapi.json", None)

    assert status == 200
    assert document["openapi"].startswith("3.1")
    assert json.dumps(document) == json.dumps(api.document)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_in_its_encoding_does_not_count_as_a_defect(api, encoding):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    status, problem = await api.send(
        "PUT", "/v1/rl/weights", TRAINER, headers=headers, data=b"not compressed"
    )
    assert (status, problem["reason"]) == (400, "BadRequest")
