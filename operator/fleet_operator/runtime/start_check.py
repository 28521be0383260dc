"""Fails the start of a process that could never lead."""

from __future__ import annotations

import asyncio
import logging

from fleet_operator.errors import NotFound, Retryable, Terminal
from fleet_operator.ports import Kube
from fleet_operator.runtime.custom_resources import NO_CRDS
from fleet_operator.runtime.permissions import Permissions
from rlfleet_resources import names

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


async def could_lead(kube: Kube, rights: Permissions) -> None:
    """Wait until the API server has said that the CRDs and all rights are there.

    Errors: Terminal, naming the missing CRDs or permissions.
    """
    while True:
        try:
            await rights.check()
            await kube.get(f"/apis/{names.GROUP}/{names.VERSION}")
        except NotFound as error:
            raise Terminal(NO_CRDS) from error
        except Retryable as error:
            logger.warning("%s; next attempt in %.0f s", error, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
