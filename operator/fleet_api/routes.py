"""The table of routes of a fleet. Every path begins with `/fleets/{namespace}/{name}`."""

from __future__ import annotations

from typing import Any

from fleet_api import events as streams
from fleet_api.bodies import Body, Nothing, Publication, Rollback, Undo, Waiting
from fleet_api.calls import Access
from fleet_api.changes import Act, Changes, publish
from fleet_api.events import Events
from fleet_api.idempotency import HEADER, MEANING
from fleet_api.mutations import handler_of, resume, retry, roll_back, suspend, undo
from fleet_api.reads import Reads
from fleet_api.replies import RolloutDocument, StateDocument, WeightsDocument, WorkersDocument
from fleet_api.route import CHANGE_ERRORS, EVENT_STREAM, Contract, Route

_STATE = Contract({200: StateDocument})
_WORKERS = Contract({200: WorkersDocument})
_EVENTS = Contract(
    {200: str},
    frozenset({400, 409}),
    headers={streams.HEADER: streams.MEANING},
    media=EVENT_STREAM,
)
_ROLLOUT = {200: RolloutDocument, 202: RolloutDocument}
_WEIGHTS = {200: WeightsDocument}


def state_routes(reads: Reads, changes: Changes, events: Events) -> tuple[Route, ...]:
    """The routes of `/v1/rl`."""

    def change(
        method: str, path: str, act: Act[Any], body: type[Body], replies: dict[int, Any]
    ) -> Route:
        contract = Contract(replies, CHANGE_ERRORS, body, headers={HEADER: MEANING})
        handler = handler_of(changes, body, act)
        return Route(method, path, handler, Access.WRITE_WEIGHTS, contract)

    read = Access.READ_WEIGHTS
    return (
        Route("GET", "/v1/rl/state", reads.state, read, _STATE),
        Route("GET", "/v1/rl/workers", reads.workers, Access.FLEET, _WORKERS),
        Route("GET", "/v1/rl/events", events.stream, read, _EVENTS),
        change("PUT", "/v1/rl/weights", publish, Publication, _ROLLOUT),
        change("POST", "/v1/rl/rollback", roll_back, Rollback, _ROLLOUT),
        change("POST", "/v1/rl/undo", undo, Undo, _ROLLOUT),
        change("POST", "/v1/rl/retry", retry, Waiting, _ROLLOUT),
        change("POST", "/v1/rl/suspend", suspend, Nothing, _WEIGHTS),
        change("POST", "/v1/rl/resume", resume, Nothing, _WEIGHTS),
    )
