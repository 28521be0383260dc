"""The table of routes of a fleet. Every path begins with `/fleets/{namespace}/{name}`."""

from __future__ import annotations

from typing import Any

from fleet_api import events as streams
from fleet_api.bodies import Nothing, Publication, Rollback, Undo, Waiting
from fleet_api.calls import Access
from fleet_api.contract import CHANGE_ERRORS, EVENT_STREAM, Contract
from fleet_api.events import Events
from fleet_api.idempotency import HEADER, MEANING
from fleet_api.mutations import Mutations
from fleet_api.reads import Reads
from fleet_api.replies import RolloutDocument, StateDocument, WeightsDocument, WorkersDocument
from fleet_api.route import Route

_STATE = Contract({200: StateDocument})
_WORKERS = Contract({200: WorkersDocument})
_EVENTS = Contract(
    {200: str},
    frozenset({400, 409}),
    headers={streams.HEADER: streams.MEANING},
    media=EVENT_STREAM,
)


def state_routes(reads: Reads, mutations: Mutations, events: Events) -> tuple[Route, ...]:
    """The routes of `/v1/rl`."""
    publish, rollback = _rollout(Publication), _rollout(Rollback)
    retry, spec = _rollout(Waiting), _change(Nothing, {200: WeightsDocument})
    read, write = Access.READ_WEIGHTS, Access.WRITE_WEIGHTS
    return (
        Route("GET", "/v1/rl/state", reads.state, read, _STATE),
        Route("GET", "/v1/rl/workers", reads.workers, Access.FLEET, _WORKERS),
        Route("GET", "/v1/rl/events", events.stream, read, _EVENTS),
        Route("PUT", "/v1/rl/weights", mutations.publish, write, publish),
        Route("POST", "/v1/rl/rollback", mutations.rollback, write, rollback),
        Route("POST", "/v1/rl/undo", mutations.undo, write, _rollout(Undo)),
        Route("POST", "/v1/rl/retry", mutations.retry, write, retry),
        Route("POST", "/v1/rl/suspend", mutations.suspend, write, spec),
        Route("POST", "/v1/rl/resume", mutations.resume, write, spec),
    )


def _rollout(body: Any) -> Contract:
    return _change(body, {200: RolloutDocument, 202: RolloutDocument})


def _change(body: Any, replies: dict[int, Any]) -> Contract:
    return Contract(replies, CHANGE_ERRORS, body, headers={HEADER: MEANING})
