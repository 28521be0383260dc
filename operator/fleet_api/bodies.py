"""Bodies of requests that change something, with the field names of the resources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from pydantic.alias_generators import to_camel

from fleet_api.problems import Problem, too_large
from rlfleet.rollout import patience
from rlfleet_resources.source import AbsolutePath, ManifestDigest, VersionLabel

B = TypeVar("B", bound=BaseModel)
BODY_SECONDS = STALL_SECONDS = 30.0
"""A body that takes longer, or stops for as long, ends its request: else a client that has stopped holds a place for good."""
BODY_BYTES_PER_SECOND = 64 * 1024
"""A body has a second more for each of these. Its small buffer (`connections.RECEIVED_BYTES`) lets
127 KiB through in a second if the round trip takes 100 ms, and half of that at 200 ms."""
_TRACEPARENT = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
"""Source: W3C Trace Context, "traceparent Header"."""


class Body(BaseModel):
    """Base of all bodies. A field that does not exist is an error, since it would have no effect."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=False
    )


class Nothing(Body):
    """An empty body."""


class Waiting(Body):
    """Whether to reply only after the rollout has ended, and the timeout of that wait."""

    wait: StrictBool = True
    timeout_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 600


class Directory(Body):
    """The directory of a version, as workers see it."""

    path: AbsolutePath


class Publishing(Waiting):
    """Whether the wait also lasts for a directory that no worker finds."""

    wait_for_files: StrictBool = False

    @property
    def patience(self) -> Mapping[str, float]:
        """Reasons that end the wait early: see `rlfleet.rollout.Asked`."""
        return patience(wait_for_files=self.wait_for_files)


class Publication(Publishing):
    """A version to serve. Without a source the WeightVersion's own names the files.

    `sameFiles`: under a source without `{version}`, the version names the files of the one before.
    `traceparent`: of the span that the rollout becomes a child of.
    """

    version: VersionLabel
    source: Directory | None = None
    same_files: StrictBool = False
    digest: ManifestDigest | None = None
    run_id: Annotated[VersionLabel | None, Field(alias="runID")] = None
    traceparent: Annotated[str | None, Field(pattern=_TRACEPARENT)] = None


class Update(Publication):
    """The version that a trainer's own call asks for.

    Nothing ends its wait early. Trainers repeat a call after 5xx and end on 409, and what keeps a rollout
    from beginning may pass: files that are late, a suspension, a fleet without workers.
    """

    @property
    def patience(self) -> Mapping[str, float]:
        """See `Publishing`."""
        return {}


class Rollback(Publishing):
    """An earlier version to go back to.

    `source`: where it is, if the fleet has no record of it. `digest`: of its files, if the fleet requires it.
    """

    version: VersionLabel
    source: Directory | None = None
    digest: ManifestDigest | None = None


class Undo(Publishing):
    """To go back to what was applied before the desired version."""


CONTENT = web.RequestKey("content", bytes)
"""The body of a request, which was read before its handler runs."""


def read(request: web.Request, model: type[B]) -> B:
    """The body of a request; an empty one has no fields. Errors: Problem 400, 422."""
    return parsed(request[CONTENT], model)


async def content_of(request: web.Request, max_bytes: int) -> bytes:
    """The whole body. `max_bytes`: its length, or the limit if it has none. Errors: Problem 408, 413."""
    content, coming = bytearray(), ComingBody(request, max_bytes)
    while part := await coming.next():
        content += part
        if len(content) > max_bytes:
            raise too_large(max_bytes)
    return bytes(content)


class ComingBody:
    """The parts of a body as its client sends them, within the time of its size.

    Only the time in which the body is waited for counts.

    Args:
        max_bytes: Its length, or the limit if it has none.
    """

    def __init__(self, request: web.Request, max_bytes: int) -> None:
        self._content = request.content
        self._seconds = self._left_seconds = BODY_SECONDS + max_bytes / BODY_BYTES_PER_SECOND

    async def next(self) -> bytes:
        """The next part; empty at the end. Errors: Problem 408."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(min(STALL_SECONDS, self._left_seconds)):
                return await self._content.readany()
        except TimeoutError:
            raise Problem(
                HTTPStatus.REQUEST_TIMEOUT,
                "RequestTimeout",
                f"the body has not come within {self._seconds:.0f} s, or stopped for {STALL_SECONDS:.0f} s; "
                "send the request again",
            ) from None
        finally:
            self._left_seconds -= clock() - began


def parsed(content: bytes, model: type[B]) -> B:
    """The body with this content. Errors: as for `read`."""
    try:
        return model.model_validate_json(content or b"{}")
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        is_json = all(one["type"] != "json_invalid" for one in found)
        status = HTTPStatus.UNPROCESSABLE_ENTITY if is_json else HTTPStatus.BAD_REQUEST
        raise Problem(
            status,
            "InvalidBody" if is_json else "BadRequest",
            "; ".join(_sentence(one) for one in found[:10]),
        ) from error


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])
