"""Changes of a WeightVersion, made by the client library with the RL API's account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

from fleet_api.bodies import Body, Publication, Publishing, Waiting
from fleet_api.calls import AUDITED, Call, path_of
from fleet_api.idempotency import HEADER, Key, KeyedObjects, RepeatedError
from fleet_api.lifecycle import Lifecycle
from fleet_api.limits import Waits
from fleet_api.ports import Cluster
from fleet_api.problems import Problem, rewound, superseded
from fleet_worker.protocol import number_of
from rlfleet.async_weights import AsyncWeights
from rlfleet.errors import Refused
from rlfleet.ports import Place
from rlfleet.resources import WeightsSpec, WeightVersion
from rlfleet.rollout import Asked, Rollout, rollout_of, trouble_of
from rlfleet.waiting import ended, wait_for

B = TypeVar("B", bound=Body)
Act = Callable[[AsyncWeights, B], Awaitable[Rollout | WeightVersion]]
"""Makes a change. After one that names a version, `Changes` waits for its rollout."""


class _WeightsOfCaller(AsyncWeights):
    """Names no other objects: the caller may have no right to know them."""

    names_others = False


class Changed(NamedTuple):
    """The outcome of a change. `replayed`: whether an earlier request with the same key made it."""

    result: Rollout | WeightVersion
    replayed: bool


class Changes:
    """Carries out changes of WeightVersions."""

    def __init__(self, cluster: Cluster, lifecycle: Lifecycle, waits: Waits) -> None:
        self._cluster = cluster
        self._lifecycle = lifecycle
        self._waits = waits

    async def carry_out(self, call: Call, seen: WeightVersion, body: B, act: Act[B]) -> Changed:
        """Change a WeightVersion and wait as long as the body asks for.

        Errors: those of `rlfleet.errors`; Problem for a misused key, while the process ends, and if too
        many requests wait, before the change.
        """
        call.request[AUDITED].asked = body.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_unset=True
        )
        key = _key(call, body)
        waits = isinstance(body, Waiting) and body.wait
        with self._waits.of(call.request, call.fleet.namespace) if waits else nullcontext():
            return await self._lifecycle.until_ending(self._carry_out(call, seen, body, act, key))

    async def _carry_out(
        self, call: Call, seen: WeightVersion, body: B, act: Act[B], key: Key | None
    ) -> Changed:
        objects: Any = self._cluster.of(call.fleet.namespace)
        name = seen.metadata.name
        # They are never closed: the connections belong to the process.
        plain = _WeightsOfCaller(name, objects=objects)
        if key is None:
            return Changed(await _carried_out(objects, act, plain, seen, body), replayed=False)
        if key.has_been_used(seen):
            return Changed(await _again(objects, seen, body, key), replayed=True)
        marked = _WeightsOfCaller(name, objects=KeyedObjects(objects, key, seen))
        try:
            return Changed(await _carried_out(objects, act, marked, seen, body), replayed=False)
        except RepeatedError as repeated:
            return Changed(await _again(objects, repeated.seen, body, key), replayed=True)


async def publish(weights: AsyncWeights, body: Publication) -> Rollout:
    """Ask for a version."""
    return await weights.publish(
        body.version,
        path=body.source.path if body.source else None,
        digest=body.digest,
        run_id=body.run_id,
        same_files=body.same_files,
        traceparent=body.traceparent,
        wait=False,
        timeout_seconds=body.timeout_seconds,
    )


async def _carried_out(
    objects: Place, act: Act[B], weights: AsyncWeights, seen: WeightVersion, body: B
) -> Rollout | WeightVersion:
    """The outcome of a change: a version is waited for with the patience of the request."""
    begun = objects.monotonic()
    made = await _acted(act, weights, seen, body)
    if isinstance(made, WeightVersion) or not (isinstance(body, Publishing) and body.wait):
        return made
    asked = Asked.by(made.weights, patience=body.patience)
    return await ended(objects, weights.name, asked, made.weights, begun + body.timeout_seconds)


async def _acted(
    act: Act[B], weights: AsyncWeights, seen: WeightVersion, body: B
) -> Rollout | WeightVersion:
    try:
        return await act(weights, body)
    except Refused as refused:
        is_rule = refused.reason == "Invalid"  # of the API server
        if is_rule and isinstance(body, Publication) and (problem := _rewind(seen.spec, body)):
            raise problem from refused
        raise


def _rewind(seen: WeightsSpec, body: Publication) -> Problem | None:
    """Why the API server refuses a lower version of the run, in words of this API; None if it refuses something else."""
    asked, reached = number_of(body.version), number_of(seen.version)
    another_run = body.run_id is not None and body.run_id != seen.run_id
    if another_run or asked is None or reached is None or asked >= reached:
        return None
    return rewound(body.version, seen.version, seen.run_id)


def _key(call: Call, body: Body) -> Key | None:
    text = call.request.headers.get(HEADER)
    if text is None:
        return None
    path = path_of(call.request)
    asked = f"{call.request.method} {path}\n{body.model_dump_json(exclude_unset=True)}"
    return Key(text, call.caller.name, asked)


def _in_words(spec: WeightsSpec) -> str:
    run = f" of run {spec.run_id}" if spec.run_id else ""
    return f"{spec.version}{run} from {spec.source}"


async def _again(
    objects: Place, seen: WeightVersion, body: Body, key: Key
) -> Rollout | WeightVersion:
    """The answer to a request that was carried out before: the outcome, without another change."""
    # A refusal from before a retry counts only when it changes.
    known = trouble_of(seen) if key.has_seen_trouble_of(seen) else None
    borne = body.patience if isinstance(body, Publishing) else {}
    if isinstance(body, Publishing):
        if not key.is_still_asked_for(seen):
            raise superseded(_in_words(seen.spec))
        known = None
    if not isinstance(body, Waiting):
        return seen
    # Another version that comes from now on is not the one of the request.
    asked = Asked.by(seen, known, borne)
    if body.wait:
        name, seconds = seen.metadata.name, body.timeout_seconds
        return await wait_for(objects, name, timeout_seconds=seconds, asked=asked)
    return rollout_of(seen, asked.label, applied=False)
