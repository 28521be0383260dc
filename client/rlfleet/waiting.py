"""Waits for the outcome of a requested version."""

from __future__ import annotations

import math
from contextlib import aclosing, suppress

from rlfleet.errors import NotFound, Unavailable
from rlfleet.follow import follow, patiently
from rlfleet.ports import Kind, Place
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Asked, Rollout, obstacle, outcome, unfinished


async def wait_for(
    place: Place, name: str, *, timeout_seconds: float, asked: Asked | None = None
) -> Rollout:
    """Wait until a requested version is applied. Returns and errors: as `Weights.publish`.

    `asked`: the request, by default that of the present spec.
    """
    deadline = place.monotonic() + timeout_seconds
    seen = await read(place, name, deadline)
    return await ended(place, name, asked or Asked.by(seen), seen, deadline)


async def ended(
    place: Place,
    name: str,
    asked: Asked,
    seen: WeightVersion,
    deadline: float,
) -> Rollout:
    """As `wait_for`, from a state that was seen."""
    reason, until = "", deadline
    try:
        while (done := outcome(asked, seen)) is None:
            now, before, reason = place.monotonic(), reason, _reason_of(asked, seen)
            if reason != before:
                until = min(deadline, now + asked.patience.get(reason, math.inf))
            if now >= until:
                raise unfinished(asked, seen)
            seen = await _news(place, name, asked, seen, until)
            if place.monotonic() >= until:
                seen = await read(place, name, deadline)
    except Unavailable as error:
        raise unfinished(asked, seen) from error
    return done


async def read(place: Place, name: str, deadline: float | None) -> WeightVersion:
    """The object. Errors: NotFound, Forbidden, Unavailable after the deadline."""
    found = await patiently(place, lambda: place.get(Kind.WEIGHTS, name), deadline)
    return WeightVersion.model_validate(found)


async def _news(
    place: Place, name: str, asked: Asked, seen: WeightVersion, until: float
) -> WeightVersion:
    """The next state with an outcome, or with another obstacle; else the last state before `until`.

    Errors: NotFound if the object was deleted; those of `outcome`.
    """
    reason = _reason_of(asked, seen)
    with suppress(Unavailable):  # the caller looks again
        async with aclosing(follow(place, name, seen=seen, deadline=until)) as events:
            async for event in events:
                seen = event.weights
                if event.type == "DELETED":
                    raise NotFound(
                        f"WeightVersion {name!r} was deleted before version "
                        f"{asked.version} was applied; create it, and publish again"
                    )
                is_news = outcome(asked, seen) is not None or _reason_of(asked, seen) != reason
                if is_news or place.monotonic() >= until:
                    break
    return seen


def _reason_of(asked: Asked, seen: WeightVersion) -> str:
    found = obstacle(asked, seen)
    return "" if found is None else found.reason
