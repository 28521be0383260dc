"""The client over the Kubernetes API or the RL API. `weights.Weights` is the same without `await`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from rlfleet.access import find_access
from rlfleet.arguments import check
from rlfleet.follow import Event, follow, patiently
from rlfleet.kube import AsyncKube
from rlfleet.metrics import metrics
from rlfleet.ports import Json, Kind, Place
from rlfleet.resources import FleetStatus, HistoryEntry, InferenceFleet, WeightVersion
from rlfleet.rl_access import RlAccess
from rlfleet.rl_api import AsyncRlApi
from rlfleet.rollout import Asked, Rollout, patience, rollout_of, trouble_of
from rlfleet.sources import Publication
from rlfleet.waiting import ended, read, wait_for


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
        same_files: bool = False,
        create_for: str | None = None,
        traceparent: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.publish`.

        >>> (await weights.publish("43", path="/weights/step_43")).timings.load_seconds
        0.4
        """
        deadline = self._place.monotonic() + timeout_seconds
        asked = Publication(
            version=version,
            path=path,
            digest=digest,
            run_id=run_id,
            same_files=same_files,
            create_for=create_for,
            traceparent=traceparent,
        )
        written = await self._changes.publish(asked, deadline)
        return await self._of_publisher(written, deadline, wait=wait, wait_for_files=wait_for_files)

    async def wait(
        self,
        rollout: Rollout | None = None,
        *,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.wait`.

        >>> (await weights.wait()).applied
        True
        """
        asked = None
        if rollout is not None:
            asked = Asked.by(rollout.weights, patience=patience(wait_for_files=wait_for_files))
        return await wait_for(self._place, self.name, timeout_seconds=timeout_seconds, asked=asked)

    async def rollback(
        self,
        version: str,
        *,
        path: str | None = None,
        digest: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.rollback`.

        >>> (await weights.rollback("41")).version
        '41'
        """
        check(version, path=path, digest=digest)
        deadline = self._place.monotonic() + timeout_seconds
        written = await self._changes.rollback(version, path, deadline, digest=digest)
        return await self._of_publisher(written, deadline, wait=wait, wait_for_files=wait_for_files)

    async def undo(
        self, *, wait: bool = True, wait_for_files: bool = False, timeout_seconds: float = 600
    ) -> Rollout:
        """As `Weights.undo`.

        >>> (await weights.undo()).version
        '41'
        """
        deadline = self._place.monotonic() + timeout_seconds
        written = await self._changes.undo(deadline)
        return await self._of_publisher(written, deadline, wait=wait, wait_for_files=wait_for_files)

    async def retry(self, *, wait: bool = True, timeout_seconds: float = 600) -> Rollout:
        """As `Weights.retry`.

        >>> (await weights.retry()).applied
        True
        """
        deadline = self._place.monotonic() + timeout_seconds
        known = trouble_of(await read(self._place, self.name, deadline))
        written = WeightVersion.model_validate(await self._changes.retry(deadline))
        asked = Asked.by(written, known)
        return await self._result(asked, written, deadline, wait=wait)

    async def suspend(self) -> WeightVersion:
        """As `Weights.suspend`.

        >>> (await weights.suspend()).spec.suspend
        True
        """
        return WeightVersion.model_validate(
            await self._changes.suspend(suspended=True, deadline=None)
        )

    async def resume(self) -> WeightVersion:
        """As `Weights.resume`.

        >>> (await weights.resume()).spec.suspend
        False
        """
        return WeightVersion.model_validate(
            await self._changes.suspend(suspended=False, deadline=None)
        )

    async def current(self) -> WeightVersion:
        """As `Weights.current`.

        >>> (await weights.current()).status.applied_version
        '42'
        """
        return await read(self._place, self.name, None)

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

    async def _of_publisher(
        self,
        changed: Json,
        deadline: float,
        *,
        wait: bool,
        wait_for_files: bool,
    ) -> Rollout:
        written = WeightVersion.model_validate(changed)
        asked = Asked.by(written, patience=patience(wait_for_files=wait_for_files))
        return await self._result(asked, written, deadline, wait=wait)

    async def _result(
        self,
        asked: Asked,
        seen: WeightVersion,
        deadline: float,
        *,
        wait: bool,
    ) -> Rollout:
        if not wait:
            return rollout_of(seen, asked.label, applied=False)
        return await ended(self._place, self.name, asked, seen, deadline)

    async def _get(self, kind: Kind, name: str) -> Json:
        return await patiently(self._place, lambda: self._place.get(kind, name), None)
