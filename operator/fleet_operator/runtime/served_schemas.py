"""Reads from time to time which status schemas the API server serves.

It publishes the schemas of CRDs in its OpenAPI document, which every authenticated user may read. So the
operator needs no right on CRDs. The index of the documents has a hash of each, and only a new one is read.

Source: Kubernetes, "The Kubernetes API", OpenAPI V3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from fleet_operator.api.served import Schema, fitting, missing_from, own_schemas
from fleet_operator.core.problems import Problem
from fleet_operator.errors import FleetError
from fleet_operator.ports import Json, Kube
from rlfleet_resources import names
from rlfleet_resources.reasons import ConditionReason

logger = logging.getLogger(__name__)

INDEX = "/openapi/v3"
LOOK_SECONDS = 30.0
PAUSE_SECONDS = 2.0
"""Between two looks, however many statuses are refused."""
REMEDY = "kubectl apply --server-side -f crds/, or helm upgrade with crds.enabled=true"
_SHOWN_AT_MOST = 5
_GROUP = f"apis/{names.GROUP}/{names.VERSION}"


class ServedSchemas:
    """The status schemas of both kinds.

    Fields:
        missing: what they do not permit of this release's statuses, by the plural of the kind.
        unknown: why they are not known; empty if they are, and before the first look.

    Args:
        kube: The API.
        on_change: Called when the schemas have changed, and when they become known or unknown.
    """

    def __init__(self, kube: Kube, on_change: Callable[[], None]) -> None:
        self._kube = kube
        self._on_change = on_change
        self._version = ""
        self._served: dict[str, Schema] = {}
        self._asked = asyncio.Event()
        self.missing: dict[str, tuple[str, ...]] = {}
        self.unknown = ""

    async def run(self) -> None:
        """Look from time to time, and soon after `look_soon`, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            self._asked.clear()
            await self.look()

    def look_soon(self) -> None:
        """Look again soon: a status was refused."""
        self._asked.set()

    async def look(self) -> None:
        """Read the schemas if they have changed."""
        before = (self._served, self.unknown)
        try:
            await self._read()
            self.unknown = ""
        except FleetError as error:
            # An API server that fails for a while serves the same schemas afterwards.
            self.unknown = "" if self._served else str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._version, self._served, self.missing = "", {}, {}
            self.unknown = f"{INDEX} has another form ({type(error).__name__})"
        if (self._served, self.unknown) != before:
            self._log()
            self._on_change()

    def fitting(self, plural: str, status: Json) -> Json:
        """The status, as far as the API server permits it. All of it while the schemas are not known."""
        served = self._served.get(plural)
        return status if served is None else fitting(status, served)

    @property
    def problem(self) -> Problem | None:
        """The problem of each fleet; None if nothing is missing, or if the schemas are not known."""
        text = self.describe()
        if not text or self.unknown:
            return None
        return Problem(
            part="CRDs",
            reason=ConditionReason.CRD_OUTDATED,
            message=f"{text}. Install the CRDs of the operator's release: {REMEDY}",
            leaves_ready=True,
        )

    def describe(self) -> str:
        """The missing parts, or why they are not known; empty if nothing is missing."""
        if self.unknown:
            return f"it is not known whether the CRDs are those of this release: {self.unknown}"
        kinds = [
            f"{plural}.{names.GROUP} {_shown(parts)}"
            for plural, parts in self.missing.items()
            if parts
        ]
        if not kinds:
            return ""
        return (
            "the CRDs of the cluster do not permit all that this operator writes, so it leaves out of "
            f"statuses: {'; '.join(kinds)}"
        )

    def _log(self) -> None:
        text = self.describe()
        if text:
            logger.warning("%s", text)
        else:
            logger.info("the CRDs of the cluster permit all that this operator writes")

    async def _read(self) -> None:
        index = await self._kube.get(INDEX)
        path = index["paths"][_GROUP]["serverRelativeURL"]
        if path == self._version:
            return
        document = await self._kube.get(path)
        found = {}
        for schema in document["components"]["schemas"].values():
            for kind in schema.get("x-kubernetes-group-version-kind") or ():
                plural = names.PLURALS.get(kind["kind"]) if kind["group"] == names.GROUP else None
                if plural is not None:
                    found[plural] = schema["properties"].get("status") or {}
        served = {plural: found[plural] for plural in names.PLURALS.values()}
        own = own_schemas()
        self.missing = {p: tuple(sorted(missing_from(s, own[p]))) for p, s in served.items()}
        self._version, self._served = path, served


def _shown(parts: Sequence[str]) -> str:
    more = len(parts) - _SHOWN_AT_MOST
    named = ", ".join(parts[:_SHOWN_AT_MOST])
    return f"{named} and {more} more" if more > 0 else named
