"""The client over the Kubernetes API or the RL API. `weights.Weights` is the same without `await`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from rlfleet import rollout as core
from rlfleet.access import find_access
from rlfleet.errors import NotFound, Unavailable
from rlfleet.follow import Event, follow, patiently
from rlfleet.kube import AsyncKube
from rlfleet.metrics import metrics
from rlfleet.ports import Json, Kind, Place
from rlfleet.resources import FleetStatus, HistoryEntry, InferenceFleet, WeightVersion
from rlfleet.rl_access import RlAccess
from rlfleet.rl_api import AsyncRlApi
from rlfleet.rollout import Asked, Rollout, outcome, rollout_of, unfinished


class AsyncWeights:
    """One WeightVersion: what a trainer publishes to. The arguments are those of `Weights`.

    >>> async with AsyncWeights("policy", namespace="rl") as weights:
    ...     print((await weights.current()).spec.version)
    42
    """

    def __init__(
        self,
        name: str,
        *,
        namespace: str | None = None,
        url: str | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        field_manager: str = "trainer",
        objects: Place | None = None,
    ) -> None:
        self.name = name
        if objects is None:
            access = find_access(
                namespace=namespace,
                url=url,
                token=token,
                token_file=token_file,
                ca=ca,
                kubeconfig=kubeconfig,
                context=context,
            )
            if isinstance(access, RlAccess):
                objects = AsyncRlApi(access, name)
            else:
                objects = AsyncKube(access, field_manager)
        self._place = objects
        self._changes = self._place.changes(name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections.

        >>> await weights.close()
        """
        await self._place.close()

    async def publish(
        self,
        version: str,
        *,
        path: str | None = None,
        digest: str | None = None,
        run_id: str | None = None,
        create_for: str | None = None,
        traceparent: str | None = None,
        wait: bool = True,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.publish`.

        >>> (await weights.publish("43", path="/weights/step_43")).timings.load_seconds
        0.4
        """
        deadline = self._place.monotonic() + timeout_seconds
        spec = core.publish_patch(version, path=path, digest=digest, run_id=run_id)
        written = _weights(await self._changes.publish(spec, create_for, traceparent, deadline))
        return await self._result(Asked.by(written), written, deadline, timeout_seconds, wait=wait)

    async def wait(self, *, timeout_seconds: float = 600) -> Rollout:
        """As `Weights.wait`.

        >>> (await weights.wait()).applied
        True
        """
        return await wait_for(self._place, self.name, timeout_seconds=timeout_seconds)

    async def rollback(
        self,
        version: str,
        *,
        path: str | None = None,
        wait: bool = True,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.rollback`.

        >>> (await weights.rollback("41")).version
        '41'
        """
        deadline = self._place.monotonic() + timeout_seconds
        written = _weights(await self._changes.rollback(version, path, deadline))
        return await self._result(Asked.by(written), written, deadline, timeout_seconds, wait=wait)

    async def retry(self, *, wait: bool = True, timeout_seconds: float = 600) -> Rollout:
        """As `Weights.retry`.

        >>> (await weights.retry()).applied
        True
        """
        deadline = self._place.monotonic() + timeout_seconds
        known = core.trouble_of(await self._current(deadline))
        written = _weights(await self._changes.retry(deadline))
        asked = Asked.by(written, known)
        return await self._result(asked, written, deadline, timeout_seconds, wait=wait)

    async def suspend(self) -> WeightVersion:
        """As `Weights.suspend`.

        >>> (await weights.suspend()).spec.suspend
        True
        """
        return _weights(await self._changes.suspend(suspended=True, deadline=None))

    async def resume(self) -> WeightVersion:
        """As `Weights.resume`.

        >>> (await weights.resume()).spec.suspend
        False
        """
        return _weights(await self._changes.suspend(suspended=False, deadline=None))

    async def current(self) -> WeightVersion:
        """As `Weights.current`.

        >>> (await weights.current()).status.applied_version
        '42'
        """
        return await self._current()

    async def history(self) -> tuple[HistoryEntry, ...]:
        """As `Weights.history`.

        >>> [(entry.version, entry.result) for entry in await weights.history()]
        [('42', 'Applied'), ('41', 'Applied')]
        """
        return (await self.current()).status.history

    async def workers(self) -> FleetStatus:
        """As `Weights.workers`.

        >>> (await weights.workers()).workers.serving
        4
        """
        fleet = (await self.current()).spec.fleet_ref.name
        return InferenceFleet.model_validate(await self._get(Kind.FLEETS, fleet)).status

    async def watch(self) -> AsyncGenerator[Event]:
        """As `Weights.watch`.

        >>> async for event in weights.watch():
        ...     print(event.type, event.weights.status.phase)
        ...     break
        ADDED Applied
        """
        async with aclosing(follow(self._place, self.name)) as events:
            async for event in events:
                yield event

    async def metrics(self, *, trained_version: str | int | None = None) -> dict[str, float]:
        """As `Weights.metrics`.

        >>> (await weights.metrics(trained_version=44))["rlfleet/lag_versions"]
        2.0
        """
        seen = await self.current()
        return metrics(seen, now=datetime.now(UTC), trained_version=trained_version)

    async def _result(
        self,
        asked: Asked,
        seen: WeightVersion,
        deadline: float,
        timeout_seconds: float,
        *,
        wait: bool,
    ) -> Rollout:
        if not wait:
            return rollout_of(seen, asked.label, applied=False)
        return await _ended(self._place, self.name, asked, seen, deadline, timeout_seconds)

    async def _current(self, deadline: float | None = None) -> WeightVersion:
        return await _read(self._place, self.name, deadline)

    async def _get(self, kind: Kind, name: str) -> Json:
        return await patiently(self._place, lambda: self._place.get(kind, name), None)


async def wait_for(
    place: Place, name: str, *, timeout_seconds: float, asked: Asked | None = None
) -> Rollout:
    """Wait until a requested version is applied. Returns and errors: as `Weights.publish`.

    `asked`: the request, by default that of the present spec.
    """
    deadline = place.monotonic() + timeout_seconds
    seen = await _read(place, name, deadline)
    return await _ended(place, name, asked or Asked.by(seen), seen, deadline, timeout_seconds)


async def _ended(
    place: Place,
    name: str,
    asked: Asked,
    seen: WeightVersion,
    deadline: float,
    timeout_seconds: float,
) -> Rollout:
    try:
        if (done := outcome(asked, seen)) is not None:
            return done
        events = follow(place, name, seen=seen, deadline=deadline)
        async with aclosing(events):
            async for event in events:
                seen = event.weights
                if event.type == "DELETED":
                    raise NotFound(
                        f"WeightVersion {name!r} was deleted before version "
                        f"{asked.version} was applied; create it, and publish again"
                    )
                if (done := outcome(asked, seen)) is not None:
                    return done
    except Unavailable as error:
        raise unfinished(asked, seen, timeout_seconds) from error
    raise unfinished(asked, seen, timeout_seconds)


async def _read(place: Place, name: str, deadline: float | None) -> WeightVersion:
    return _weights(await patiently(place, lambda: place.get(Kind.WEIGHTS, name), deadline))


def _weights(found: Json) -> WeightVersion:
    return WeightVersion.model_validate(found)
