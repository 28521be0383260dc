"""Writes the pods of a fleet, and keeps the writes that the watch has not delivered yet.

Creation is paced. It begins with one pod, and each success allows one more at a time, up to
`CREATIONS_AT_ONCE`. The first failure ends the attempt, since a quota would refuse the other pods,
too. The next attempt comes after a wait that doubles, and begins with one pod again. Source:
the ReplicaSet controller of Kubernetes (`slowStartBatch`).

A change that another controller undoes is repeated ever later, and reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from fleet_operator.core.pod_actions import CreatePod, PodAction
from fleet_operator.core.worker_view import PodView
from fleet_operator.errors import FleetError, NameTaken, Retryable, Terminal
from fleet_operator.runtime.backoff import Backoff
from fleet_operator.runtime.kube_pods import KubePods
from fleet_operator.runtime.repeated_writes import RepeatedWrites
from fleet_operator.runtime.unobserved_writes import UnobservedWrites
from rlfleet_resources import names

CREATIONS_AT_ONCE = 32
"""Half of the client's concurrent requests. The other half remains for statuses."""
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Between two attempts to create pods that were refused."""
_KINDS = tuple(kind.__name__ for kind in get_args(PodAction))
UNSEEN_SECONDS = 5.0
"""How long to wait for the watch to deliver a created pod before it is created again."""


@dataclass(slots=True)
class _Creation:
    """State of the creation of a fleet's pods. Times are seconds of the event loop's clock.

    Fields:
        revision: revision of the last attempt's pods.
        error: why they could not be created; None if they could.
        not_before: when the next attempt may come.
        unseen: name of a created pod that the watch has not delivered → creation time.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_SECONDS, LONGEST_SECONDS))
    revision: str = ""
    error: Exception | None = None
    not_before: float = 0.0
    unseen: dict[str, float] = field(default_factory=dict)


def _urgency(failure: Exception) -> int:
    """The rank of a failure among those of one fleet; the first is reported.

    A refusal must not be hidden by a temporary error, nor one of all pods by a name that is taken.
    """
    if isinstance(failure, NameTaken):
        return 1
    return 0 if isinstance(failure, Terminal) else 2


class PodWriter:
    """Writes to the pods of one fleet, in this namespace."""

    def __init__(self, pods: KubePods, namespace: str) -> None:
        self._pods = pods
        self._namespace = namespace
        self._own = UnobservedWrites()
        self._creation: _Creation | None = None
        self._done: RepeatedWrites[tuple[str, str]] = RepeatedWrites()
        """Kinds of changes, and names of their pods."""

    def laid_over(self, pods: Sequence[PodView]) -> Sequence[PodView]:
        """The pods with the unobserved writes applied."""
        if self._creation is not None and self._creation.unseen:
            for pod in pods:
                self._creation.unseen.pop(pod.name, None)
        return self._own.laid_over(pods)

    async def run(self, actions: Sequence[PodAction]) -> None:
        """Change pods, and create missing ones. A name that is taken blocks one pod only.

        Errors: those of the API server, repeated while the next attempt to create is not due.
        """
        created = [a for a in actions if isinstance(a, CreatePod)]
        done = self._done
        done.keep_missing([_name_of(a) for a in actions])
        early = [a for a in actions if done.wait_seconds(_name_of(a))]
        failures: list[Exception] = [e for a in early if (e := done.error_of(_name_of(a)))]
        due = [a for a in actions if a not in early]
        failures += await self._at_once([a for a in due if not isinstance(a, CreatePod)])
        if not created:
            self._creation = None
        elif creations := [a for a in due if isinstance(a, CreatePod)]:
            # A refused deletion of one pod says nothing about the creation of others.
            failures += await self._create_again(creations)
        failures += done.undone()
        if failures:
            raise min(failures, key=_urgency)

    async def _create_again(self, pods: Sequence[CreatePod]) -> list[Exception]:
        """Create pods, unless the API server has refused pods of this revision recently."""
        now = asyncio.get_running_loop().time()
        creation = self._creation = self._creation or _Creation()
        revision = pods[0].manifest["metadata"].get("labels", {}).get(names.LABEL_REVISION, "")
        if creation.revision != revision:
            creation.revision, creation.error = revision, None
            creation.backoff.reset()
        if creation.error is not None and now < creation.not_before:
            return [creation.error]
        late = [n for n, at in creation.unseen.items() if now - at >= UNSEEN_SECONDS]
        for name in late:
            del creation.unseen[name]
        failures = await self._create([p for p in pods if p.pod_name not in creation.unseen])
        stopping = [f for f in failures if not isinstance(f, NameTaken)]
        creation.error = next((f for f in stopping if isinstance(f, Terminal)), None)
        if stopping:
            creation.error = creation.error or stopping[0]
            asked = [f.after_seconds or 0.0 for f in stopping if isinstance(f, Retryable)]
            seconds = creation.backoff.next_seconds(asked_seconds=max(asked, default=None))
            creation.not_before = asyncio.get_running_loop().time() + seconds
        else:
            creation.backoff.reset()
        return failures

    async def _create(self, pods: Sequence[CreatePod]) -> list[Exception]:
        try:
            if not pods or not await self._pods.may_create(pods[0]):
                return []  # the watch has not delivered yet that the fleet is gone
        except FleetError as refusal:
            return [refusal]
        waiting, at_once = deque(pods), 1
        running: set[asyncio.Task[Exception | None]] = set()
        failures: list[Exception] = []
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.add(asyncio.create_task(self._change(waiting.popleft())))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for error in (task.result() for task in done):
                    if error is None:
                        at_once = min(at_once + 1, CREATIONS_AT_ONCE)
                        continue
                    failures.append(error)
                    if not isinstance(error, NameTaken):
                        waiting.clear()
        finally:
            for task in running:
                task.cancel()
        return failures

    async def _at_once(self, actions: Sequence[PodAction]) -> list[Exception]:
        outcomes = await asyncio.gather(*(self._change(a) for a in actions))
        return [o for o in outcomes if o is not None]

    async def _change(self, action: PodAction) -> Exception | None:
        try:
            changed = await self._pods.change(self._namespace, action)
        except Exception as error:  # noqa: BLE001 - becomes a condition of the fleet
            return error
        self._note_done(action, changed.lost)
        if changed.lost:
            return None
        self._own.note(action, changed.version)
        if isinstance(action, CreatePod) and self._creation is not None:
            self._creation.unseen[action.pod_name] = asyncio.get_running_loop().time()
        return None

    def _note_done(self, action: PodAction, lost: str) -> None:
        for kind in _KINDS:
            if kind != type(action).__name__:  # what it undoes may be needed again at once
                self._done.forget((kind, action.pod_name))
        self._done.note(_name_of(action), " of Pod ".join(_name_of(action)), lost=lost)


def _name_of(action: PodAction) -> tuple[str, str]:
    return type(action).__name__, action.pod_name
