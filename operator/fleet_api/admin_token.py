"""The admin token of a fleet, read from its Secret for each call and kept nowhere."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus

from fleet_api.fleets import Fleet
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from rlfleet_resources import names


async def admin_token(cluster: Cluster, fleet: Fleet) -> str:
    """The first line of the Secret, with which calls are signed.

    Errors: Problem 502 for a Secret without a usable token; those of `Cluster`.
    """
    name = names.admin_token_secret_name(fleet.name)
    secret = await cluster.call("GET", f"/api/v1/namespaces/{fleet.namespace}/secrets/{name}")
    owners = secret["metadata"].get("ownerReferences") or ()
    if not any(owner["uid"] == fleet.uid for owner in owners):
        raise _unusable(fleet, name, "belongs to another fleet")
    try:
        text = base64.b64decode(secret["data"][names.ADMIN_TOKEN_KEY], validate=True).decode()
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        text = ""
    token = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not (token.isascii() and token.isprintable() and token):
        raise _unusable(fleet, name, "holds no token")
    return token


def _unusable(fleet: Fleet, name: str, fact: str) -> Problem:
    return Problem(
        HTTPStatus.BAD_GATEWAY,
        "UnusableToken",
        f"Secret {name!r} in namespace {fleet.namespace!r} {fact}; delete the Secret, and the "
        "operator creates a new one",
    )
