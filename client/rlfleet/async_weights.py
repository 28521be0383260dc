"""The client over the Kubernetes API or the RL API. `weights.Weights` is the same without `await`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from rlfleet.access import find_access
from rlfleet.arguments import Directory, Version, check, label_of, path_of
from rlfleet.deltas.libraries import libraries
from rlfleet.deltas.options import Deltas, Given
from rlfleet.deltas.written import Written
from rlfleet.errors import NotFound, Refused, RlfleetError
from rlfleet.follow import Event, follow, patiently
from rlfleet.kinds import check_kinds
from rlfleet.kube import AsyncKube
from rlfleet.metrics import metrics
from rlfleet.ports import Json, Kind, Place, closed
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.rl_access import RlAccess
from rlfleet.rl_api import AsyncRlApi
from rlfleet.rollout import ABSENT, Asked, Rollout, left_base, patience, rollout_of, trouble_of
from rlfleet.sources import Publication, place_of
from rlfleet.waiting import ended, read, wait_for
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import HistoryEntry

if TYPE_CHECKING:
    from rlfleet.deltas.publisher import Publisher

P = ParamSpec("P")
T = TypeVar("T")
_MOST_NAMED = 10
"""Names of other objects in a message."""
_Method = Callable[Concatenate["AsyncWeights", P], Coroutine[Any, Any, T]]


def _naming_others(method: _Method[P, T]) -> _Method[P, T]:
    """The method, whose NotFound names similar objects."""

    @wraps(method)
    async def call(self: AsyncWeights, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(self, *args, **kwargs)
        except NotFound as error:
            raise await self._named(error) from error

    return call


class AsyncWeights:
    """One WeightVersion: what a trainer publishes to. The arguments are those of `Weights`.

    >>> async with AsyncWeights("policy", namespace="rl") as weights:
    ...     print((await weights.current()).spec.version)
    42
    """

    names_others: ClassVar[bool] = True
    """Whether an error for a name that does not exist names similar objects, which are listed for that."""

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
        self._publisher: Publisher | None = None
        self._written: Written | None = None

    @property
    def written(self) -> Written | None:
        """The version that this client wrote last, with its bytes; None if it has written none."""
        return self._written

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections. Later calls fail.

        >>> await weights.close()
        """
        closing, self._place = self._place, closed()
        await closing.close()

    @_naming_others
    async def publish(
        self,
        version: Version,
        *,
        path: Directory | None = None,
        state_dict: Mapping[str, Any] | None = None,
        model: Any = None,
        directory: Directory | None = None,
        config_from: Directory | None = None,
        written_to: Directory | None = None,
        delta: bool | Deltas = False,
        digest: str | None = None,
        run_id: str | None = None,
        same_files: bool = False,
        create_for: str | None = None,
        traceparent: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.publish`. Weights are written in a thread, and must not change until that has ended.

        >>> (await weights.publish("43", path="/weights/step_43")).timings.load_seconds
        0.4
        """
        check_kinds(
            state_dict=state_dict,
            model=model,
            directory=directory,
            config_from=config_from,
            written_to=written_to,
            delta=delta,
            create_for=create_for,
            timeout_seconds=timeout_seconds,
        )
        given = Given(
            state_dict=state_dict,
            model=model,
            directory=None if directory is None else Path(directory),
            config_from=None if config_from is None else Path(config_from),
        )
        asked = Publication(
            version=label_of(version),
            path=path_of(path),
            digest=digest,
            run_id=run_id,
            same_files=same_files,
            create_for=create_for,
            traceparent=traceparent,
        )
        here = None
        if given:
            asked = await self._write(asked, given, delta, written_to)
            here = self._written
        elif delta:
            raise Refused(
                asked.version,
                "Invalid",
                "a delta needs the new weights: give state_dict=, model= or directory=. A delta that exists "
                "is published by its path, without delta=",
            )
        deadline = self._deadline(timeout_seconds)
        changed = await self._place.changes(self.name).publish(asked, deadline)
        try:
            return await self._of_publisher(
                changed, deadline, wait=wait, wait_for_files=wait_for_files
            )
        except Refused as refused:
            if here is None or refused.reason != ABSENT:
                raise
            message = (
                f"{refused.message}. This process has written it to {here.directory}: if the fleet's "
                "volume is elsewhere on this machine, name the directory with written_to="
            )
            raise Refused(refused.version, refused.reason, message) from refused

    @_naming_others
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
        check_kinds(rollout=rollout, timeout_seconds=timeout_seconds)
        asked = None
        if rollout is not None:
            asked = Asked.by(rollout.weights, patience=patience(wait_for_files=wait_for_files))
        return await wait_for(self._place, self.name, timeout_seconds=timeout_seconds, asked=asked)

    @_naming_others
    async def rollback(
        self,
        version: Version,
        *,
        path: Directory | None = None,
        digest: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """As `Weights.rollback`.

        >>> (await weights.rollback("41")).version
        '41'
        """
        label, at = label_of(version), path_of(path)
        check(label, path=at, digest=digest)
        deadline = self._deadline(timeout_seconds)
        written = await self._place.changes(self.name).rollback(label, at, deadline, digest=digest)
        return await self._of_publisher(written, deadline, wait=wait, wait_for_files=wait_for_files)

    @_naming_others
    async def undo(
        self, *, wait: bool = True, wait_for_files: bool = False, timeout_seconds: float = 600
    ) -> Rollout:
        """As `Weights.undo`.

        >>> (await weights.undo()).version
        '41'
        """
        deadline = self._deadline(timeout_seconds)
        written = await self._place.changes(self.name).undo(deadline)
        return await self._of_publisher(written, deadline, wait=wait, wait_for_files=wait_for_files)

    @_naming_others
    async def retry(self, *, wait: bool = True, timeout_seconds: float = 600) -> Rollout:
        """As `Weights.retry`.

        >>> (await weights.retry()).applied
        True
        """
        deadline = self._deadline(timeout_seconds)
        known = trouble_of(await read(self._place, self.name, deadline))
        written = WeightVersion.model_validate(await self._place.changes(self.name).retry(deadline))
        asked = Asked.by(written, known)
        return await self._result(asked, written, deadline, wait=wait)

    @_naming_others
    async def suspend(self) -> WeightVersion:
        """As `Weights.suspend`.

        >>> (await weights.suspend()).spec.suspend
        True
        """
        return WeightVersion.model_validate(
            await self._place.changes(self.name).suspend(suspended=True, deadline=None)
        )

    @_naming_others
    async def resume(self) -> WeightVersion:
        """As `Weights.resume`.

        >>> (await weights.resume()).spec.suspend
        False
        """
        return WeightVersion.model_validate(
            await self._place.changes(self.name).suspend(suspended=False, deadline=None)
        )

    @_naming_others
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
        try:
            async with aclosing(follow(self._place, self.name)) as events:
                async for event in events:
                    yield event
        except NotFound as error:
            raise await self._named(error) from error

    async def metrics(self, *, trained_version: str | int | None = None) -> dict[str, float]:
        """As `Weights.metrics`.

        >>> (await weights.metrics(trained_version=44))["rlfleet/lag_versions"]
        2.0
        """
        seen, now = await self.current(), datetime.now(UTC)
        return metrics(seen, now=now, trained_version=trained_version, written=self._written)

    def _deadline(self, timeout_seconds: float) -> float:
        """By the place's clock. Errors: TypeError."""
        check_kinds(timeout_seconds=timeout_seconds)
        return self._place.monotonic() + timeout_seconds

    async def _write(
        self,
        asked: Publication,
        given: Given,
        delta: bool | Deltas,  # noqa: FBT001 - as `publish` has it
        written_to: Directory | None,
    ) -> Publication:
        """Write a version's files. Returns: the publication with their directory and digest."""
        if asked.digest is not None:
            raise Refused(
                asked.version, "Invalid", "the digest is that of what is written; leave digest= out"
            )
        with libraries():
            from rlfleet.deltas import publisher as publishing  # noqa: PLC0415 - see libraries
        if self._publisher is None:
            self._publisher = publishing.Publisher()
        publisher = self._publisher
        try:
            seen = await read(self._place, self.name, None)
        except NotFound:
            if asked.create_for is None:
                raise
            seen = None
        path, run_id = place_of(seen, asked)
        order = publishing.Order(
            version=asked.version,
            run_id=run_id,
            path=path,
            target=Path(path if written_to is None else written_to),
            deltas=Deltas() if delta is True else delta or None,
            left_base=partial(left_base, seen),
        )
        # Another thread may write another version at the same time.
        written = await self._place.in_background(lambda: publisher.write(order, given))
        self._written = written
        return replace(asked, path=path, digest=written.digest)

    async def _of_publisher(
        self, changed: Json, deadline: float, *, wait: bool, wait_for_files: bool
    ) -> Rollout:
        written = WeightVersion.model_validate(changed)
        asked = Asked.by(written, patience=patience(wait_for_files=wait_for_files))
        return await self._result(asked, written, deadline, wait=wait)

    async def _result(
        self, asked: Asked, seen: WeightVersion, deadline: float, *, wait: bool
    ) -> Rollout:
        if not wait:
            return rollout_of(seen, asked.label, applied=False)
        return await ended(self._place, self.name, asked, seen, deadline)

    async def _named(self, error: NotFound) -> NotFound:
        """The error with the names of similar objects."""
        others = await hint(self._place, self.name) if self.names_others else ""
        return NotFound(f"{error}{others}")

    async def _get(self, kind: Kind, name: str) -> Json:
        return await patiently(self._place, lambda: self._place.get(kind, name), None)


async def hint(place: Place, name: str) -> str:
    """The end of a message for a name that does not exist.

    Empty if it exists, where there are no others, and if the account may not list them.
    """
    try:
        found = await place.all(Kind.WEIGHTS)
    except RlfleetError:
        return ""
    there = sorted(one["metadata"]["name"] for one in found)
    if name in there or not there:
        return ""
    near = get_close_matches(name, there, n=3)
    if near:
        return f". Did you mean {' or '.join(near)}?"
    more = len(there) - _MOST_NAMED
    return f". There are: {', '.join(there[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
