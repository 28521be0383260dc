"""Splits a call to a fleet into the calls to its workers, and joins their replies: pure.

A reply of all workers has the fields of one worker's reply, so that clients of one vLLM read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fleet_api.ports import MAX_REPLY_BYTES, Target, WorkerReply
from fleet_api.problems import RETRY_SECONDS, Problem
from fleet_operator.counts import counted
from fleet_worker.protocol import Reason

REPLY_BYTES = 512
"""Room for the answer of each worker, beyond that for one long answer. Most have less than 100 bytes."""
_MAX_MESSAGE_CHARACTERS = 500
_PASSING = frozenset({Reason.STALE_CALL, Reason.WRONG_POD, Reason.UNAUTHORIZED})
"""The pod, its process or the token was replaced in the meantime: the next call sees the new one."""

Split = Callable[[Mapping[str, Any], Sequence[Target]], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a route is passed on.

    Fields:
        whole: it needs every worker that the fleet should have, since their ranks are counted.
        first_alone: the first worker is called before the others, so that it decides between two trainers.
        one: one worker answers for all.
        split: makes the body of each worker, with its rank in a group that all join; without it all get
            the same bytes.
    """

    whole: bool = False
    first_alone: bool = False
    one: bool = False
    split: Split | None = None


class Room:
    """The memory for the answers to one call of a trainer. The tenant's image decides how long they are.

    Args:
        workers: the number of workers that are called.
    """

    def __init__(self, workers: int) -> None:
        self._max_bytes = MAX_REPLY_BYTES + workers * REPLY_BYTES
        self._left_bytes = self._max_bytes

    def take(self, reply: WorkerReply) -> WorkerReply:
        """Make room for an answer. Returns: the reply; one without an answer if there is no room left."""
        size = len(reply.content)
        if size > self._left_bytes:
            return WorkerReply(
                problem=f"its answer has {size} bytes, and all answers to one call may have "
                f"{self._max_bytes}; check the workers' image"
            )
        self._left_bytes -= size
        return reply


def together(replies: Sequence[WorkerReply]) -> dict[str, Any]:
    """The fields of all good replies: booleans must hold for all, numbers are added, lists are joined."""
    bodies = [reply.body or {} for reply in replies]
    return {key: _merged([body.get(key) for body in bodies]) for key in bodies[0]}


def failure(targets: Sequence[Target], replies: Sequence[WorkerReply]) -> Problem | None:
    """A problem that lists the outcome of each worker; None if all have succeeded.

    A refusal is final. Without one, the same request may succeed later.
    """
    bad = [reply for reply in replies if not reply.is_good]
    if not bad:
        return None
    final = [reply for reply in bad if not _passes(reply)]
    status = _status_of(final[0].status) if final else HTTPStatus.SERVICE_UNAVAILABLE
    outcomes = [_outcome(one, reply) for one, reply in zip(targets, replies, strict=False)]
    outcomes += [{"pod": one.pod, "status": None} for one in targets[len(replies) :]]
    first = next(o for o, r in zip(outcomes, replies, strict=False) if r is (final or bad)[0])
    good = len(replies) - len(bad)
    return Problem(
        status,
        "WorkersRefused" if final else "WorkersUnavailable",
        f"{good} of {counted(len(targets), 'worker')} succeeded. {first['pod']}: {first['message']}",
        headers={} if final else {"Retry-After": str(RETRY_SECONDS)},
        more={"workers": outcomes},
    )


def _status_of(status: int) -> HTTPStatus:
    """The status for a refusal; 409 instead of a status that clients would misread."""
    known = {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}
    return HTTPStatus(status) if status in known else HTTPStatus.CONFLICT


def split_init_info(body: Mapping[str, Any], targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The bodies of `/init_weight_transfer_engine`. Errors: Problem 422."""
    info = body.get("init_info")
    if not isinstance(info, dict):
        raise _unfit("init_info is not an object")
    return [{**body, "init_info": part} for part in _ranked(info, "world_size", targets)]


def split_broadcaster(body: Mapping[str, Any], targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The bodies of prime-rl's `/init_broadcaster`. Errors: Problem 422."""
    return _ranked(body, "inference_world_size", targets)


def _ranked(
    info: Mapping[str, Any], size_key: str, targets: Sequence[Target]
) -> list[dict[str, Any]]:
    """The body for each worker, with the rank of its first process. Ranks continue from worker to worker."""
    offset, size = info.get("rank_offset"), info.get(size_key)
    if type(offset) is not int or type(size) is not int:
        raise _unfit(f"rank_offset and {size_key} are not both integers")
    parts = []
    for target in targets:
        parts.append({**info, "rank_offset": offset})
        offset += target.processes
    if offset > size:
        raise _unfit(
            f"{size_key} is {size}, and the ranks of the fleet's processes end at {offset - 1}; ask "
            "for /get_world_size"
        )
    return parts


def _merged(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(type(value) is bool for value in values):
        return all(values)
    if all(type(value) is int for value in values):
        return sum(values)
    if all(type(value) is list for value in values):
        return [element for value in values for element in value]
    return first if all(value == first for value in values) else None


def _passes(reply: WorkerReply) -> bool:
    return reply.status == 0 or reply.status >= 500 or _error_of(reply)[0] in _PASSING


def _outcome(target: Target, reply: WorkerReply) -> dict[str, Any]:
    """The outcome at one worker. Texts of the worker are cut, since a tenant's image decides them."""
    outcome: dict[str, Any] = {"pod": target.pod, "status": reply.status or None}
    if not reply.is_good:
        reason, message = _error_of(reply)
        outcome |= {"reason": reason, "message": message}
    return outcome


def _error_of(reply: WorkerReply) -> tuple[str, str]:
    """Reason and message of a worker's refusal, in the form of its operator's or its trainers' routes."""
    if reply.status == 0:
        return "Silent", reply.problem
    error = (reply.body or {}).get("error")
    error = error if isinstance(error, dict) else {}
    reason = str(error.get("reason") or error.get("type") or "Unknown")
    message = str(error.get("message") or f"it answers {reply.status}")
    return reason[:63], message[:_MAX_MESSAGE_CHARACTERS]


def _unfit(fact: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidBody", fact)
